"""The command line on the bundled demo: documents, messages and exit codes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ddtree_engine.cli.main import build_parser, main
from ddtree_engine.engine import DEMO, choose_device_rounds
from ddtree_engine.training.arguments import RANGES
from tests.engine.another_user import as_another_user
from tests.engine.serving.server_process import wait_for

PROMPT = "def fibonacci(n):"
LONG = "a" * 5000  # no file system has names like that
BAD_PROMPTS = json.loads((Path(__file__).parent / "data/bad_prompts.json").read_text())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_generate_says_the_same_in_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for mode in ("ar", "linear", "shadow", "tree:16"):
        code, out, _ = run(
            capsys, "generate", "--prompt", PROMPT, "--mode", mode, "--max-tokens", "40", "--json"
        )
        assert code == 0
        document = json.loads(out)
        assert document["finish_reason"] == "length"
        assert len(document["tokens"]) == 40
        assert document["acceptance_length"] == 40 / document["rounds"]
        texts.append(document["text"])
    assert len(set(texts)) == 1
    code, out, err = run(capsys, "generate", "--prompt", PROMPT, "--max-tokens", "40")
    assert code == 0
    assert out.rstrip("\n") == texts[0].rstrip("\n")
    assert "acceptance length" in err


def test_a_budget_beside_the_mode_or_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = []
    for options in (["tree:2"], ["tree", "--budget", "2"], ["tree:64", "--budget", "2"]):
        code, out, _ = run(
            capsys,
            "generate",
            "--prompt",
            PROMPT,
            "--max-tokens",
            "40",
            "--json",
            "--mode",
            *options,
        )
        assert code == 0
        rounds.append(json.loads(out)["rounds"])
    assert rounds[0] == rounds[1] > rounds[2]


def test_generate_reads_the_prompt_from_standard_input() -> None:
    command = [sys.executable, "-m", "ddtree_engine", "generate", "--max-tokens", "5", "--json"]
    done = subprocess.run(command, input=PROMPT, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["tokens"]) == 5


def test_a_reader_that_leaves_is_no_traceback() -> None:
    command = f"{sys.executable} -m ddtree_engine check --list-prompts --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)  # noqa: S602
    assert done.stderr == ""


def test_the_parser_leaves_pytorch_alone() -> None:
    # An option that is wrong, and Ctrl-C, should be answered in a moment.
    look = "import sys; from ddtree_engine.cli.main import build_parser; build_parser(); "
    command = [sys.executable, "-c", look + "print('torch' in sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def is_read(fifo: Path) -> bool:
    """Whether somebody waits for what is written to it; from then on it stays open."""
    try:
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("when", ["importing", "at work"])
def test_an_interrupt_is_one_word(when: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    os.mkfifo(prompts)
    command = [sys.executable, "-m", "ddtree_engine", "check", "--prompts", str(prompts)]
    environment = dict(os.environ)
    if when == "importing":
        # Stops at the first module that is a command's own.
        stop = "import signal; signal.raise_signal(signal.SIGINT)"
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\nclass Stop:\n  def find_spec(self, name, *rest):\n"
            f"    if name == 'ddtree_engine.cli.serve':\n      {stop}\n"
            "sys.meta_path.insert(0, Stop())\n"
        )
        environment["PYTHONPATH"] = str(tmp_path)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        if when == "at work":
            wait_for(lambda: is_read(prompts), "the prompts to be read")
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_output_that_nothing_takes_is_an_error() -> None:
    command = f"{sys.executable} -m ddtree_engine check --list-prompts > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-"])
def test_standard_streams_that_are_closed(closed: str) -> None:
    """They are nowhere, and no file or socket gets their number: libraries write to it."""
    program = (
        "import os, sys; from ddtree_engine.cli.main import main; "
        "sys.exit(main(['check', '--list-prompts']) or os.open(os.devnull, os.O_RDONLY))"
    )
    command = f'{sys.executable} -c "{program}" {closed}'
    done = subprocess.run(command, shell=True, stdout=subprocess.DEVNULL, check=False)  # noqa: S602
    assert done.returncode >= 3


def test_inspect_describes_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", "--json")
    assert code == 0
    document = json.loads(out)
    target, drafter = document["target"], document["drafter"]
    assert target["architecture"] == "Qwen3_5ForCausalLM"
    assert (target["recurrent_layers"], target["attention_layers"]) == (6, 2)
    # 6 layers x (6 heads x 32 x 32 + 384 channels x 3) float32 numbers.
    assert target["state_bytes_per_request"] == 6 * (6 * 32 * 32 + 384 * 3) * 4
    assert target["kv_bytes_per_token"] == 2 * 2 * 2 * 64 * 4
    assert drafter["block_size"] == 16
    memory = document["memory"]
    parts = ("weights", "caches", "verification", "workspace")
    assert memory["total_bytes"] > sum(memory[f"{part}_bytes"] for part in parts)
    assert memory["weights_bytes"] == target["weight_bytes"] + drafter["weight_bytes"]
    code, text, _ = run(capsys, "inspect", "--max-running", "3", "--max-context", "100")
    assert code == 0
    assert f"{target['parameters']:,}" in text
    assert "memory on a GPU: 3 requests of 100 tokens, trees of 64" in text
    code, _, err = run(capsys, "inspect", "--budget", "0")
    assert code == 1
    assert "--budget must be 1 or more" in err


def test_check_compares_modes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}) + "\n\n")
    arguments = ["check", "--prompts", str(prompts), "--max-tokens", "10", "--runs", "2"]
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["divergences"] == []
    assert document["runs"] == 2
    modes = [(one["mode"], one["temperature"]) for one in document["results"]]
    names = ("ar", "linear", "shadow", "tree:16", "tree:64")
    assert modes == [(name, temperature) for temperature in (0.0, 0.8) for name in names]
    for one in document["results"]:
        assert one["tokens"] == 10
        assert one["acceptance_length"] == one["tokens"] / one["rounds"]
        assert len(one["tokens_per_second_runs"]) == 2
        assert (one["shadow"] is not None) == (one["mode"] == "shadow")
    code, out, _ = run(capsys, *arguments, "--temperatures", "0", "--modes", "tree:8")
    assert code == 0
    assert "0 divergences" in out
    assert "tree:8" in out


def test_check_against_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", "--limit", "1", "--max-tokens", "12", "--temperatures", "0.8"]
    arguments += ["--modes", "tree:8", "--rounds", "device", "--against"]
    code, out, _ = run(capsys, *arguments, "cpu", "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["rounds"], document["against"]) == ("device", "cpu")
    assert document["divergences"] == []
    code, out, _ = run(capsys, *arguments, "cpu")
    assert code == 0
    assert "rounds led by the device, held against cpu" in out
    code, _, err = run(capsys, *arguments, "tpu")
    assert code == 1
    assert "`tpu` is not a device" in err


def test_rounds_are_led_by_a_gpu_and_not_by_a_cpu() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert [choose_device_rounds("auto", one) for one in (cpu, gpu)] == [False, True]
    assert [choose_device_rounds("host", one) for one in (cpu, gpu)] == [False, False]
    assert [choose_device_rounds("device", one) for one in (cpu, gpu)] == [True, True]


def test_check_fails_on_a_divergence_over_the_gap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The leak makes real divergences; forget that it was asked for, and they are failures.
    arguments = ["check", "--limit", "1", "--max-tokens", "16"]
    arguments += ["--modes", "tree:64", "--temperatures", "0.8"]
    code, out, err = run(capsys, *arguments, "--recurrent-state", "leak", "--json")
    assert code == 0
    found = json.loads(out)["divergences"]
    assert found
    assert max(one["gap"] for one in found) > 1e-3
    from ddtree_engine.engine import Engine

    exact = Engine.decoder

    def leaky(self: Engine, *, max_length: int, **_: object) -> object:
        return exact(self, max_length=max_length, recurrent_state="leak")

    monkeypatch.setattr(Engine, "decoder", leaky)
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert "gap under ar" in err
    code, _, _ = run(capsys, *arguments, "--max-gap", "1e9")
    assert code == 0


def test_every_number_of_a_training_run_has_a_range() -> None:
    arguments = build_parser().parse_args(["train", "all", "--out", "x"])
    numbers = {
        name
        for name, value in vars(arguments).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert numbers <= set(RANGES)
    assert set(RANGES) <= set(vars(arguments))


# The command with a library of one's own: the tokenizer of a whole one takes half a minute.
TRAIN = """
import sys
from pathlib import Path
from ddtree_engine.cli.main import main
from ddtree_engine.training import corpus, run_folder
run_folder.read_corpus = lambda: corpus.read_corpus(Path(sys.argv[1]))
sys.exit(main(["train", "corpus", "--out", sys.argv[2]]))
"""


def test_training_tells_what_it_does(tmp_path: Path) -> None:
    library, out = tmp_path / "library", tmp_path / "out"
    library.mkdir()
    for module in ("ast", "heapq", "keyword"):
        shutil.copy(Path(sysconfig.get_path("stdlib")) / f"{module}.py", library)
    command = [sys.executable, "-c", TRAIN, str(library), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "INFO held_out: {'documents': 2, " in done.stderr
    assert "INFO train: {'documents': 1, " in done.stderr


def test_list_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--list-prompts", "--json")
    assert code == 0
    assert len([json.loads(line)["prompt"] for line in out.splitlines()]) >= 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--mode", "tree:x", "--prompt", "a"], "`tree:x` is not a mode"),
        (["generate", "--mode", "linear:4", "--prompt", "a"], "`linear:4` is not a mode"),
        (["generate", "--mode", "tree:", "--prompt", "a"], "`tree:` is not a mode"),
        (["generate", "--mode", "ar:", "--prompt", "a"], "`ar:` is not a mode"),
        (["generate", "--mode", "tree:0", "--prompt", "a"], "budget must be 1 or more, got 0"),
        (["generate", "--prompt", ""], "the prompt is empty"),
        (["generate", "--prompt", "a", "--temperature", "-1"], "temperature must be 0"),
        (["generate", "--prompt", "a", "--max-tokens", "0"], "--max-tokens must be 1 or more"),
        (["generate", "--prompt", "a", "--max-tokens", "-999"], "--max-tokens must be 1 or more"),
        (["generate", "--prompt", "a", "--max-tokens", "9999"], "than the 4096 positions"),
        (["generate", "--prompt", "a\udcff"], "the prompt is not Unicode text"),
        (["generate", "--prompt", "a", "--mode", "tree:1025"], "budget 1025 is over the limit"),
        (["generate", "--prompt", "a", "--topk", "129"], "topk 129 is over the limit"),
        (["generate", "--prompt", "a", "--threads", "1000000"], "--threads must be from 1 to"),
        (["generate", "--prompt", "a", "--drafter", "none"], "needs a drafter"),
        (["generate", "--prompt", "a", "--model", "/nowhere"], "`/nowhere` does not exist"),
        (["inspect", "--model", __file__], "is not a folder"),
        (["generate", "--prompt", "a", "--model", LONG], "File name too long"),
        (["inspect", "--drafter", LONG], "File name too long"),
        (["bench", "--shape", LONG], "File name too long"),
        (["serve", "--model", LONG, "--mode", "ar"], "File name too long"),
        (["generate", "--prompt", "a", "--device", "tpu9"], "`tpu9` is not a device"),
        (["generate", "--prompt", "a", "--device", "meta"], "`meta` is not supported"),
        (["generate", "--prompt", "a", "--threads", "0"], "--threads must be from 1 to"),
        (["inspect", "--model", str(DEMO / "drafter")], "this is a drafter"),
        (["inspect", "--drafter", str(DEMO / "target")], "this is a target"),
        (["check", "--temperatures", "hot"], "takes numbers"),
        (["check", "--modes", "beam"], "`beam` is not a mode"),
        (["check", "--runs", "0"], "--runs must be 1 or more"),
        (["check", "--max-tokens", "0"], "--max-tokens must be 1 or more"),
        (["check", "--max-tokens", "4096"], "than the 4096 positions"),
        (["check", "--max-gap", "nan"], "--max-gap must be 0 or more"),
        (["check", "--max-gap", "-1"], "--max-gap must be 0 or more"),
        (["check", "--limit", "0"], "--limit must be 1 or more"),
        (["check", "--drafter", "none"], "no drafter to compare with"),
        (["train", "target", "--out", "x", "--batch", "0"], "--batch must be from 1 to"),
        (["train", "target", "--out", "x", "--dropout", "2"], "--dropout must be from 0 to 0.9"),
        (["train", "all", "--out", "x", "--learning-rate", "nan"], "--learning-rate must be from"),
        (["train", "drafter", "--out", "x", "--seconds", "inf"], "--seconds must be from"),
        (["train", "generate", "--out", "x", "--rows-at-once", "-1"], "--rows-at-once must be"),
        (["train", "target", "--out", "/nowhere"], "not a finished part of a training run"),
    ],
)
def test_bad_input_is_one_message(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        (["generate", "--prompt-file"], "a text file in UTF-8"),
        (["check", "--prompts"], "a file in UTF-8 with a JSON object a line"),
        (["serve", "--mode", "ar", "--api-key-file"], "a text file with one key a line"),
    ],
)
@pytest.mark.parametrize("what", ["absent", "a folder", "no text", "of another user"])
def test_a_named_file_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], option: list[str], wanted: str, what: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name, "file")
        if what == "a folder":
            path.mkdir()
        elif what != "absent":
            path.write_bytes(b"\xff")
        if what == "of another user":
            path.chmod(0)
        with as_another_user():
            code, _, err = run(capsys, *option, str(path))
    error, *_, hint = err.splitlines()
    assert code == 1
    assert error.startswith("error: ")
    assert error.endswith(f"`{path}` can't be read")
    if what == "of another user":
        assert hint.startswith(f"hint: `namei -l {path}` shows where user")
    else:
        assert hint == f"hint: give {wanted}"


@pytest.mark.parametrize("case", BAD_PROMPTS, ids=lambda case: str(case["name"]))
def test_prompts_that_are_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, case: dict[str, str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(case["content"])
    code, out, err = run(capsys, "check", "--prompts", str(prompts), "--max-tokens", "1")
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert case["says"] in err


def test_prompts_may_hold_any_character_and_a_byte_order_mark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    texts = ["a\u2028b", "a\x85b", "a\tb"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    prompts.write_text("\ufeff" + "\r\n\n".join(lines), newline="")
    code, out, _ = run(capsys, "check", "--prompts", str(prompts), "--list-prompts", "--json")
    assert code == 0
    listed = [json.loads(line) for line in out.rstrip("\n").split("\n")]
    assert [one["prompt"] for one in listed] == texts
    assert [one["name"] for one in listed] == ["line 1", "line 3", "line 5"]


@pytest.mark.parametrize(
    ("stdin", "encoding", "message"),
    [(b"\xff\xfe", "utf-8", "standard input is not text"), (b"caf\xc3\xa9", "ascii", None)],
)
def test_terminals_and_pipes_without_unicode(
    stdin: bytes, encoding: str, message: str | None
) -> None:
    command = [sys.executable, "-m", "ddtree_engine", "generate", "--max-tokens", "2"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    if message is None:
        command += ["--prompt", stdin.decode(), "--mode", "τ"]
        message = "`\\u03c4` is not a mode"
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment, check=False)
    assert done.returncode == 1
    assert message in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_divergence_that_no_gap_explains_is_a_failure_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddtree_engine import comparison

    real = comparison.compare

    def diverging(*arguments: Any, **options: Any) -> Iterator[Any]:
        for gap in (math.inf, math.nan):
            yield comparison.Divergence("tree:8", 0.0, 0, 0, gap)
        yield from real(*arguments, **options)

    monkeypatch.setattr(comparison, "compare", diverging)
    arguments = ["check", "--limit", "1", "--max-tokens", "2", "--modes", "ar"]
    code, out, _ = run(capsys, *arguments, "--temperatures", "0", "--json")
    assert code == 1
    document = json.loads(out, parse_constant=pytest.fail)
    assert [one["gap"] for one in document["divergences"]] == [None, None]


@pytest.mark.parametrize("arguments", [[], ["fly"], ["generate", "--max-tokens", "many"]])
def test_bad_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
