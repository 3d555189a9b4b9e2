"""`cordon`, `uncordon` and `drain` on a machine of one's own, and on hosts that nobody reaches."""

import json
import signal
from pathlib import Path

import pytest

from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.cli.main import run
from ddtreectl.facts.cordons import Cordon
from tests.ctl.machine import Machine

NOBODY_LISTENS = str(Path(__file__).parent / "data/nobody_listens.yaml")
WRITTEN = Cordon(1, "GPU-1", "smoke", "ada@ops", "2026-01-02T03:04:05")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "state/ddtreectl"


def test_what_is_kept_is_read_by_the_next_command_and_forgotten(state: Path) -> None:
    kept = KeptCordons(Path("fleet.yaml"))
    assert kept.of("h1") == ()
    kept.add("h1", WRITTEN)
    kept.add("h2", WRITTEN)
    again = KeptCordons(Path.cwd() / "fleet.yaml")
    assert [cordon.kept for cordon in again.of("h1")] == ["operator"]
    assert again.of("h1")[0].to_json() == WRITTEN.to_json()
    assert KeptCordons(Path("other.yaml")).of("h1") == ()
    again.remove("h1", WRITTEN.name, "never-there")
    assert again.of("h1") == ()
    assert again.of("h2")
    assert state.is_dir()


@pytest.mark.parametrize("text", ["", "[]", '{"hosts": []}', '{"hosts": {"h1": 5}}', "\x00\xff"])
def test_a_damaged_file_keeps_nothing_and_can_be_written(state: Path, text: str) -> None:
    kept = KeptCordons(Path("fleet.yaml"))
    state.mkdir(parents=True)
    kept.path.write_text(text)
    assert kept.of("h1") == ()
    kept.add("h1", WRITTEN)
    assert len(kept.of("h1")) == 1


def test_a_host_that_cannot_be_reached_is_cordoned_for_this_inventory(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--inventory", NOBODY_LISTENS]
    assert run([*words, "cordon", "ct129:1", "--reason", "Xid 79", "--json"]) == 4
    (entry,) = json.loads(capsys.readouterr().out)["cordoned"]
    assert (entry["gpu"], entry["reason"], entry["kept"]) == (1, "Xid 79", "operator")
    assert "does not answer" in entry["unreachable"]
    assert list(state.glob("cordons-*.json"))
    assert run([*words, "drain", "ct129"]) == 4
    assert "ct129: cordoned" in capsys.readouterr().out
    assert len(KeptCordons(Path(NOBODY_LISTENS)).of("ct129")) == 2
    assert run([*words, "uncordon", "ct129", "ct200"]) == 4
    assert capsys.readouterr().err.count("does not answer") == 2
    assert KeptCordons(Path(NOBODY_LISTENS)).of("ct129") == ()


@pytest.mark.parametrize(
    "target", ["ct129:", "ct129:x", "ct129:64", "ct129:-1", "ct129:1:2", "ct129:00019"]
)
def test_a_target_is_a_host_or_an_index(
    target: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--inventory", NOBODY_LISTENS, "cordon", target, "--reason", "x"]) == 2
    assert "a GPU is named by its index, as in `ct129:1`" in capsys.readouterr().err
    assert not state.exists()


@pytest.mark.parametrize("reason", ["", " \n", "fans\nGPU 1: ok", "fans\u2028GPU 1: ok", "x" * 301])
@pytest.mark.parametrize("words", [["cordon", "ct129"], ["drain", "ct129"], ["lock", "break"]])
def test_a_reason_is_one_line(
    words: list[str], reason: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--inventory", NOBODY_LISTENS, *words, "--reason", reason]) == 2
    assert "`--reason`" in capsys.readouterr().err
    assert not state.exists()


def test_a_state_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert run(["--inventory", NOBODY_LISTENS, "cordon", "ct129", "--reason", "x"]) == 1
    said = capsys.readouterr().err
    assert "cannot be written" in said
    assert "$XDG_STATE_HOME names another folder" in said


def interrupted_drain(machine: Machine) -> tuple[int, str]:
    """The exit code of a drain that gets a Ctrl-C after its cordon, and what it says of slots."""
    process = machine.begin("drain", "local")
    assert process.stdout is not None
    assert "local: cordoned" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    return process.returncode, out


@pytest.mark.e2e
@pytest.mark.usefixtures("state")
def test_a_cordoned_host_takes_no_service_and_a_drained_one_has_none(machine: Machine) -> None:
    done = machine.run("cordon", "local", "--reason", "fans are loud")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "local: cordoned (fans are loud)\n"
    done = machine.run("cordon", "local", "--reason", "louder")
    assert "in place of what was there: the host is cordoned: fans are loud" in done.stdout
    assert machine.run("cordon", "local", "--reason", "fans are loud").returncode == 0
    refused = machine.deploy("tree")
    assert refused.returncode == 1
    assert "the host is cordoned: fans are loud" in refused.stderr
    assert "`ddtreectl uncordon local` ends that" in refused.stderr
    ended = machine.run("uncordon", "local")
    assert ended.returncode == 0, ended.stderr
    assert "the host was cordoned: fans are loud" in ended.stdout
    assert machine.run("uncordon", "local").stdout == "local: it was not cordoned\n"
    code, out = interrupted_drain(machine)
    assert (code, out) == (0, "local/cpu7: empty\n"), "nothing has ever run in the slot"
    assert machine.run("uncordon", "local").returncode == 0
    deployed = machine.deploy("tree", *machine.model("stubborn", "stubborn"))
    assert deployed.returncode == 0, deployed.stderr

    code, out = interrupted_drain(machine)
    assert code == 1, out
    assert "interrupted: the cordons stay" in out

    drained = machine.run("drain", "local", "--reason", "fans again")
    assert drained.returncode == 0, drained.stderr
    assert "local/cpu7: stopped" in drained.stdout
    assert machine.processes_of_slot() == []
    assert "fans again" in machine.run("rollback", "local", "--to", "1").stderr
    audit = (machine.root / "audit.jsonl").read_text()
    events = [json.loads(line)["event"] for line in audit.splitlines()]
    kept = [e for e in events if e in {"cordon", "uncordon", "stop-done"}]
    assert kept == [
        *["cordon"] * 3,
        "uncordon",
        "cordon",
        "uncordon",
        "cordon",
        "cordon",
        "stop-done",
    ]
    again = machine.run("drain", "local", "--json")
    assert json.loads(again.stdout)["slots"][0]["state"] == "empty"
