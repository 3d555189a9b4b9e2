"""Training end to end at a tiny size: the loop, interruption, every part in turn, export."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddtree_engine.drafter import load_drafter
from ddtree_engine.errors import EngineError
from ddtree_engine.target import load_target
from ddtree_engine.training import command
from ddtree_engine.training.checkpoint import load_best, load_state, read_facts, save_state
from ddtree_engine.training.corpus import Corpus, Document
from ddtree_engine.training.loop import Schedule, train
from ddtree_engine.training.target import load_trained_target

CPU = torch.device("cpu")


# ---- the loop ----


class Line(nn.Module):
    """A model of two parameters, one of them fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(3, 3))
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)


def fit(
    folder: Path,
    *,
    resume: bool = False,
    model: nn.Module | None = None,
    time_limit: float | None = None,
) -> dict[str, Any]:
    line = Line() if model is None else model
    weight = next(p for p in line.parameters() if p.requires_grad)

    def objective(step: int) -> Tensor:
        return ((weight - step - torch.rand(weight.shape)) ** 2).mean()

    schedule = Schedule(steps=9, warmup=2, evaluate_every=4, seed=7, time_limit=time_limit)
    return train(
        line,
        objective,
        lambda final: {"loss": weight.square().mean().item(), "final": float(final)},
        schedule,
        folder,
        tokens_per_step=1,
        about={"what": "line"},
        resume=resume,
    )


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    assert whole["finished"]
    part = fit(tmp_path / "parts", time_limit=0.0)
    assert (part["step"], part["finished"]) == (1, False)
    fit(tmp_path / "parts", resume=True, time_limit=0.0)
    done = fit(tmp_path / "parts", resume=True)
    assert (done["finished"], done["runs"]) == (True, 3)
    for one, other in zip(
        load_state(tmp_path / "whole")[1].items(),
        load_state(tmp_path / "parts")[1].items(),
        strict=True,
    ):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
    assert [h["loss"] for h in whole["history"]] == [h["loss"] for h in done["history"]]
    assert [h["final"] for h in whole["history"]] == [0.0, 0.0, 1.0]


def test_the_best_parameters_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    facts = fit(tmp_path)
    assert facts["best"]["loss"] == min(entry["loss"] for entry in facts["history"])
    best = load_best(tmp_path)
    assert best["slope"].dtype == torch.bfloat16
    assert best["slope"].float().square().mean().item() == pytest.approx(
        facts["best"]["loss"], rel=0.01
    )


def test_steps_are_chosen_from_the_measured_speed_and_kept(tmp_path: Path) -> None:
    line = Line()
    schedule = Schedule(steps=None, seconds=0.2, warmup=2, evaluate_every=10**6)
    facts = train(
        line,
        lambda step: (line.slope - step).square().mean(),
        lambda _: {"loss": 0.0},
        schedule,
        tmp_path,
        tokens_per_step=1,
        about={},
        resume=False,
    )
    assert facts["finished"]
    assert facts["total"] == facts["step"] >= 31
    assert read_facts(tmp_path)["total"] == facts["total"]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    model = Line()
    with pytest.raises(EngineError, match="nan at step 1"):
        train(
            model,
            lambda _: (model.slope * math.nan).sum(),
            lambda _: {"loss": 0.0},
            Schedule(steps=1),
            tmp_path,
            tokens_per_step=1,
            about={},
            resume=False,
        )


def test_states_are_sharded_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree_engine.training.checkpoint.SHARD_BYTES", 64)
    tensors = {f"parameter/{i}": torch.arange(8.0) + i for i in range(5)}
    save_state(tmp_path, {"step": 1}, tensors)
    save_state(tmp_path, {"step": 2}, tensors)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [*(f"state-000002-0{i}.safetensors" for i in range(3)), "state.json"]
    _, loaded = load_state(tmp_path)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    (tmp_path / names[1]).write_bytes(b"cut short")
    with pytest.raises(EngineError, match="state-000002-01"):
        load_state(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(EngineError, match="damaged"):
        read_facts(tmp_path)


def test_resuming_another_model_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, time_limit=0.0)
    with pytest.raises(EngineError, match="another model"):
        fit(tmp_path, resume=True, model=nn.Linear(2, 2, bias=False))
    with pytest.raises(EngineError, match="holds no training state"):
        fit(tmp_path / "nowhere", resume=True)


# ---- the command ----


OPTIONS = {
    "target": "--shape tiny --device cpu --steps 30 --batch 4 --length 32 --dropout 0.1 --warmup 3"
    " --evaluate-every 15",
    "generate": "--rows 24 --rows-at-once 16 --row-length 48",
    "drafter": "--drafter-batch 4 --anchors 6",
}
TARGET = ["target", *OPTIONS["target"].split()]
ALL = ["all", *" ".join(OPTIONS.values()).split()]


def small_library() -> Corpus:
    body = "    total = 0\n    for item in values:\n        total = total + item * 2\n" * 6
    train_docs = tuple(
        Document(f"m{i}.py", f"def f{i}(values):\n{body}    return total\n" * 6) for i in range(40)
    )
    apart = tuple(
        Document(f"h{i}.py", f"def held{i}(values):\n{body}    return total\n" * 4)
        for i in range(8)
    )
    return Corpus(train_docs, apart, {"x.py": "empty"})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of `train all` on a small library."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("run_folder", "export"):
            patch.setattr(f"ddtree_engine.training.{module}.read_corpus", small_library)
        assert command.main([*ALL, "--out", str(root)]) == 0
    return root


@pytest.mark.slow
def test_training_learns(run_folder: Path) -> None:
    for part in ("target", "drafter"):
        facts = read_facts(run_folder / part)
        losses = [entry["train_loss"] for entry in facts["history"]]
        assert facts["finished"]
        assert losses[-1] < losses[0]


@pytest.mark.slow
def test_exported_folders_load_in_the_engine_and_in_transformers(run_folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = run_folder / "export"
    ours = load_target(folder / "target", device=CPU, dtype=torch.float32)
    load_drafter(folder / "drafter", device=CPU, dtype=torch.float32)
    theirs = transformers.Qwen3_5ForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    tokens = torch.randint(4, ours.config.vocab_size, (2, 40))
    with torch.no_grad():
        expected = theirs(tokens).logits
        logits = ours.logits(ours.forward_sequence(tokens)[0])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_resuming_all_leaves_what_is_finished_and_begins_what_is_missing(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("run_folder", "export"):
        monkeypatch.setattr(f"ddtree_engine.training.{module}.read_corpus", small_library)
    shutil.copytree(run_folder / "target", tmp_path / "target")
    before = (tmp_path / "target" / "state.json").read_text()
    assert command.main([*ALL, "--resume", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "target" / "state.json").read_text() == before
    expected, again = (load_best(root / "drafter") for root in (run_folder, tmp_path))
    assert all(torch.equal(expected[name], again[name]) for name in expected)


@pytest.mark.slow
def test_the_card_and_the_prompts(run_folder: Path) -> None:
    folder = run_folder / "export"
    card = (folder / "README.md").read_text()
    facts = read_facts(run_folder / "drafter")
    corpus = json.loads((run_folder / "corpus" / "facts.json").read_text())
    assert corpus["sha256"] in card
    assert f"| linear | {facts['best']['tau_linear']:.2f} | 1.00 |" in card
    assert facts["command"] in card
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == [f"h{i}.held{i}" for i in range(8)]


@pytest.mark.slow
def test_an_interrupted_target_resumes_to_the_same_bits(run_folder: Path, tmp_path: Path) -> None:
    for name in ("corpus", "tokenizer"):
        shutil.copytree(run_folder / name, tmp_path / name)
    arguments = [*TARGET, "--out", str(tmp_path)]
    assert command.main([*arguments, "--time-limit", "0"]) == 0
    assert read_facts(tmp_path / "target")["step"] == 1
    assert command.main([*arguments, "--resume"]) == 0
    expected, resumed = (load_best(root / "target") for root in (run_folder, tmp_path))
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    load_trained_target(tmp_path / "target", CPU)


def test_a_missing_part_is_one_clear_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert command.main(["drafter", "--out", str(tmp_path)]) == 1
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "not a finished part" in record.message
    assert "hint: run `train corpus`" in record.message


@pytest.mark.slow
def test_export_with_another_library_is_refused(
    run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Not patched here: the interpreter's own library is another than the run's.
    assert command.main(["export", "--out", str(run_folder), "--to", str(tmp_path / "to")]) == 1
    assert "is not the one that the run was trained on" in caplog.text
    assert not (tmp_path / "to").exists()
