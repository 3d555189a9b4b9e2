"""What a user reads: errors, hints, exit codes, documents."""

import json
from pathlib import Path

import pytest

from ddtreectl.cli.main import run
from ddtreectl.cli.status_table import uptime

REPOSITORY = Path(__file__).parents[2]
NOBODY_LISTENS = "tests/ctl/data/nobody_listens.yaml"


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("DDTREECTL_INVENTORY", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


ERRORS: dict[str, tuple[list[str], int, str, str]] = {
    "unknown host": (
        ["deploy", "ct300", "--mode", "tree"],
        2,
        "error: host `ct300` is not in the inventory",
        "hint: it has: local; `--inventory PATH` names another",
    ),
    "no inventory": (
        ["--inventory", "none.yaml", "status"],
        2,
        "error: inventory `none.yaml` cannot be read",
        "hint: name another file with `--inventory PATH`",
    ),
    "protected GPU": (
        [
            "--inventory",
            "inventories/fleet.yaml",
            "deploy",
            "ct200",
            "--mode",
            "tree",
            "--gpu",
            "0",
        ],
        2,
        "error: GPU 0 of `ct200` belongs to the protected `ddtree-wrapper`: a standalone DDTree",
        "",
    ),
    "budget": (
        ["deploy", "local", "--mode", "tree", "--budget", "0"],
        2,
        "error: `--budget` must be `auto`, or a number from 1 to 1024",
        "",
    ),
    "budget of what moves": (
        ["--inventory", NOBODY_LISTENS, "migrate", "ct200", "--mode", "tree", "--budget", "0"],
        2,
        "error: `--budget` must be `auto`, or a number from 1 to 1024",
        "",
    ),
    "several hosts": (
        ["--inventory", "inventories/fleet.yaml", "rollback"],
        2,
        "error: this inventory has several hosts",
        "hint: name one of: ct200, ct129",
    ),
    "unreachable": (
        ["--inventory", NOBODY_LISTENS, "deploy", "ct200", "--mode", "tree"],
        4,
        "127.0.0.1:1 does not answer\n  cause: connection refused",
        "",
    ),
    "resume and more": (
        ["deploy", "--resume", "last", "ct200", "--budget", "4", "--dry-run"],
        2,
        "error: `--resume` goes on with the hosts, the service and the rules of its roll",
        "hint: leave out: --budget, HOST",
    ),
    "endless document": (["logs", "local", "--follow", "--json"], 2, "error: `--follow`", ""),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_and_what_next(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code, message, hint = ERRORS[name]
    assert run(arguments) == code
    said = capsys.readouterr().err
    assert message in said
    assert hint in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["deploy", "local"],
        ["deploy", "local", "--mode", "fast"],
        ["deploy", "local", "--mode", "tree", "--budget", "many"],
        ["frobnicate"],
        ["--frobnicate"],
    ],
)
def test_a_mistyped_command_line_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy", "ct300", "--mode", "tree", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 2
    assert set(error) == {"message", "cause", "hint", "evidence", "exit_code"}


def test_inventory_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["inventory", "check", "inventories/fleet.yaml"]) == 0
    assert "2 hosts, 2 slots, no mistakes" in capsys.readouterr().out
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("hosts:\n  local: {connection: local, slots: {cpu0: {port: 30001}}}\n")
    assert run(["inventory", "check", str(wrong)]) == 2
    assert f"{wrong}:2:38: hosts.local.slots.cpu0" in capsys.readouterr().err
    assert run(["inventory", "schema"]) == 0
    assert "hosts" in json.loads(capsys.readouterr().out)["properties"]
    assert run(["inventory", "show", "--json"]) == 0
    assert "local" in json.loads(capsys.readouterr().out)["hosts"]


def test_render_prints_the_unit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--mode", "tree", "--budget", "16"]
    assert run(["render", "local", *words]) == 0
    text = capsys.readouterr().out
    assert " --mode tree --budget 16 --topk 8 " in text
    assert run(["render", "local", "--mode", "tree", "--budget", "auto"]) == 0
    assert " --mode tree --budget auto --topk 8 " in capsys.readouterr().out
    assert run(["render", "local", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == text
    assert document["path"] == "/etc/systemd/system/ddtree-cpu0-tree.service"


def test_unreachable_hosts_are_an_outcome_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["--inventory", NOBODY_LISTENS, "status", "--json"]) == 4
    hosts = json.loads(capsys.readouterr().out)["hosts"]
    assert [(host["host"], host["reachable"]) for host in hosts] == [
        ("ct200", False),
        ("ct129", False),
    ]
    mixed = tmp_path / "mixed.yaml"
    mixed.write_text(
        "hosts:\n"
        f"  here: {{connection: local, root: {tmp_path}/root, "
        f"unit_dir: {tmp_path}/u/etc/systemd/system, "
        "slots: {cpu7: {device: cpu, port: 39999}}}\n"
        "  there: {address: 127.0.0.1, ssh: {config: /dev/null, port: 1}, "
        "slots: {cpu7: {device: cpu, port: 39999}}}\n"
    )
    assert run(["--inventory", str(mixed), "status"]) == 3
    table = capsys.readouterr().out
    assert "unreachable" in table
    assert "empty" in table


def test_a_roll_that_goes_on_may_be_looked_at_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    inventory = tmp_path / "fleet.yaml"
    inventory.write_text((REPOSITORY / NOBODY_LISTENS).read_text())
    words = ["--inventory", str(inventory), "deploy"]
    assert run([*words, "ct200", "ct129", "--mode", "linear"]) == 4
    (journal,) = tmp_path.glob("ddtreectl/rolls/*.json")
    before = journal.read_text()
    assert '"unreachable"' in before
    capsys.readouterr()

    assert run([*words, "--resume", "last", "--dry-run", "--json"]) == 4
    said = capsys.readouterr()
    plans = json.loads(said.out)["plans"]
    assert [plan["host"] for plan in plans] == ["ct200", "ct129"]
    assert journal.read_text() == before
    assert "has changed" not in said.err

    inventory.write_text(f"{inventory.read_text()}# and more\n")
    assert run([*words, "--resume", "last", "--dry-run"]) == 4
    assert "has changed since the roll began" in capsys.readouterr().err


def test_the_inventory_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDTREECTL_INVENTORY", "inventories/fleet.yaml")
    assert run(["inventory", "check"]) == 0
    assert "fleet.yaml" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0s"), (61, "1m 1s"), (3700, "1h 1m"), (90000, "1d 1h")],
)
def test_uptime(seconds: float | None, text: str) -> None:
    assert uptime(seconds) == text
