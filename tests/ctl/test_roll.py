"""Rolls over many hosts: who is begun, when it ends, and what its journal remembers."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtreectl.apply import roll_journal
from ddtreectl.apply.deploy import Outcome
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.operator import current
from ddtreectl.apply.roll import Result, Roll, Rules, Target, exit_code
from ddtreectl.apply.roll_journal import Request, RollJournal
from ddtreectl.errors import (
    DdtreectlError,
    ExitCode,
    LockedError,
    RolledBackError,
    StepError,
    UnreachableError,
    UsageError,
)
from ddtreectl.inventory.service import Mode
from ddtreectl.plan.step import Plan

DONE = Outcome(Plan("h", "s", (), None), applied=True)
SAME = Outcome(Plan("h", "s", (), None), applied=False)
ERRORS: dict[str, BaseException] = {
    "unreachable": UnreachableError("gone"),
    "rolled back": RolledBackError("generation 1 serves again"),
    "locked": LockedError("locked by ada"),
    "failed": StepError("no"),
    "interrupted": InterruptedByOperatorError("SIGINT"),
}


class Fleet:
    """Hosts whose deploys end as they are told to, and what the roll made of them."""

    def __init__(self, rules: Rules, **outcomes: str) -> None:
        self.outcomes = outcomes
        self.begun: list[str] = []
        self.at_once = self.most_at_once = 0
        self.stopped: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        targets = [Target(host, "gpu0") for host in outcomes]
        self.roll = Roll(
            targets,
            rules,
            work=self.work,
            stop=lambda host, signal: self.stopped.append((host, signal)),
            record=lambda target: None,
        )

    def work(self, host: str) -> Outcome:
        with self.lock:
            self.begun.append(host)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        outcome = self.outcomes[host]
        with self.lock:
            self.at_once -= 1
        if outcome in ERRORS:
            raise ERRORS[outcome]
        return SAME if outcome == "same" else DONE

    def results(self) -> dict[str, str]:
        self.roll.run()
        return {host: target.result.value for host, target in self.roll.targets.items()}


def test_every_host_is_deployed_to() -> None:
    fleet = Fleet(Rules(), a="ok", b="ok", c="same")
    assert fleet.results() == {"a": "deployed", "b": "deployed", "c": "unchanged"}
    assert fleet.begun[0] == "a"
    assert exit_code(fleet.roll.targets.values()) is ExitCode.DONE
    assert fleet.roll.halted == ""


def test_a_canary_that_fails_ends_the_roll() -> None:
    fleet = Fleet(Rules(canary=1, max_failures=5), a="rolled back", b="ok")
    assert fleet.results() == {"a": "rolled back", "b": "waiting"}
    assert fleet.roll.halted == "a canary has failed"
    assert exit_code(fleet.roll.targets.values()) is ExitCode.ROLLED_BACK


def test_an_unreachable_host_counts_as_a_failure() -> None:
    fleet = Fleet(Rules(canary=1, parallel=1), a="ok", b="unreachable", c="ok")
    assert fleet.results() == {"a": "deployed", "b": "unreachable", "c": "waiting"}
    assert fleet.roll.halted == "1 failed, and 0 may"
    assert exit_code(fleet.roll.targets.values()) is ExitCode.PARTIAL


def test_an_unreachable_host_may_be_skipped() -> None:
    rules = Rules(canary=0, parallel=1, skip_unreachable=True)
    fleet = Fleet(rules, a="unreachable", b="ok")
    assert fleet.results() == {"a": "unreachable", "b": "deployed"}
    assert exit_code(fleet.roll.targets.values()) is ExitCode.PARTIAL


@pytest.mark.parametrize(
    ("outcome", "code"),
    [("unreachable", 4), ("locked", 5), ("rolled back", 6), ("failed", 1), ("interrupted", 1)],
)
def test_the_exit_code_where_nothing_was_deployed(outcome: str, code: int) -> None:
    fleet = Fleet(Rules(canary=0, max_failures=2), a=outcome, b=outcome)
    assert set(fleet.results().values()) == {outcome}
    assert exit_code(fleet.roll.targets.values()) == code


def test_a_signal_lets_nothing_new_begin() -> None:
    fleet = Fleet(Rules(canary=0, parallel=1), a="ok", b="ok")

    def work(host: str) -> Outcome:
        fleet.roll.halt("SIGINT")
        raise ERRORS["interrupted"]

    fleet.outcomes["a"] = "interrupted"
    fleet.roll._work = work
    assert fleet.results() == {"a": "interrupted", "b": "waiting"}
    assert (set(fleet.stopped), fleet.roll.halted) == ({("a", "SIGINT")}, "interrupted by SIGINT")


def test_a_signal_between_two_beginnings() -> None:
    fleet = Fleet(Rules(canary=0, parallel=2), a="interrupted", b="ok")

    def record(target: Target) -> None:
        if target.host == "a" and target.result is Result.BEGUN:
            fleet.roll.halt("SIGINT")

    fleet.roll._record = record
    assert fleet.results() == {"a": "interrupted", "b": "waiting"}
    assert fleet.begun == ["a"]
    assert set(fleet.stopped) == {("a", "SIGINT")}


OUTCOMES = st.sampled_from(["ok", "same", *ERRORS])


@given(
    outcomes=st.lists(OUTCOMES, min_size=1, max_size=12),
    canary=st.integers(0, 4),
    parallel=st.integers(1, 5),
    most=st.integers(0, 4),
    skip=st.booleans(),
)
def test_a_roll_keeps_its_rules(
    outcomes: list[str], canary: int, parallel: int, most: int, skip: bool
) -> None:
    rules = Rules(canary, parallel, most, skip)
    fleet = Fleet(rules, **{f"h{n:02}": outcome for n, outcome in enumerate(outcomes)})
    results = fleet.results()
    assert fleet.most_at_once <= parallel
    assert len(set(fleet.begun)) == len(fleet.begun)
    assert Result.BEGUN.value not in results.values()
    failed = rules.failures(fleet.roll.targets.values())
    assert failed <= max(most + parallel, canary)
    if "waiting" in results.values():
        assert fleet.roll.halted
        assert failed > most or rules.failures(list(fleet.roll.targets.values())[:canary])


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/ddtreectl/rolls"


def new_journal(inventory: Path) -> RollJournal:
    request = Request(mode=Mode.TREE, budget=16)
    targets = [Target("a", "gpu0"), Target("b", "gpu0")]
    return RollJournal.new(inventory, request, Rules(max_failures=3), targets, current())


def test_a_journal_is_read_as_it_was_written(state: Path, tmp_path: Path) -> None:
    journal = new_journal(tmp_path / "fleet.yaml")
    journal.record(Target("b", "gpu0", Result.ROLLED_BACK, 3, "not ready", 1.5))
    assert roll_journal.find("last", tmp_path / "fleet.yaml") == journal
    assert roll_journal.find(journal.name, tmp_path / "elsewhere.yaml") == journal
    assert [path.suffix for path in state.iterdir()] == [".json"]


def test_rolls_that_cannot_be_resumed(state: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no roll over hosts"):
        roll_journal.find("last", tmp_path / "fleet.yaml")
    journal = new_journal(tmp_path / "fleet.yaml")
    with pytest.raises(UsageError, match="there is no roll `20`") as caught:
        roll_journal.find("20", tmp_path / "fleet.yaml")
    assert journal.name in caught.value.hint
    journal.path.write_text('{"inventory": 1')
    with pytest.raises(UsageError, match="is damaged"):
        roll_journal.find("last", tmp_path / "fleet.yaml")


def test_a_roll_without_a_journal_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(DdtreectlError, match="cannot be written"):
        new_journal(tmp_path / "fleet.yaml")
