"""Plans of slots behind a router: when a worker is taken out, when it is put in, what is told."""

from dataclasses import replace

import pytest

from ddtreectl.facts.http import Answer
from ddtreectl.facts.router import (
    RouterFacts,
    RouterWorker,
    State,
    WorkerList,
    parse_list,
    parse_workers,
)
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.inventory.service import Mode
from ddtreectl.inventory.workers import Worker
from ddtreectl.plan.routed import routed
from ddtreectl.plan.step import Action, Phase, Plan, Step
from tests.ctl.test_plan import wish

SETTINGS = RouterSettings(host="h1", address="10.0.0.1", port=8000)
WORKER = Worker("h2/gpu1", "http://10.0.0.2:30001")
_WISHED = wish(Mode.TREE).candidate
EVERYWHERE = _WISHED.service.model_copy(update={"address": "0.0.0.0"})  # noqa: S104 - it is to be
CANDIDATE = replace(_WISHED, service=EVERYWHERE)
READY = RouterWorker(WORKER.name, frozenset(), WORKER.url, "ready", 0)
OTHER = RouterWorker("h1/gpu0", frozenset(), "http://127.0.0.1:30000", "ready", 2)
IN = RouterFacts("up", "", {WORKER.name: WORKER.url, OTHER.name: OTHER.url}, {}, (READY, OTHER))
OUT = RouterFacts("up", "", {OTHER.name: OTHER.url}, {}, (OTHER,))


def plan(*actions: Action, phase: Phase = Phase.SWAP, empty_slot: bool = False) -> Plan:
    steps = tuple(Step(action, action.value, "", phase) for action in actions)
    return Plan("h2", "gpu1", steps, None if empty_slot else CANDIDATE)


SWAP = plan(Action.CHECK_UNIT, Action.BEGIN_SWAP, Action.STOP, Action.START, Action.MARK_GOOD)
FIRST = plan(Action.BEGIN_SWAP, Action.AWAIT_RELEASE, Action.START, Action.MARK_GOOD)
STOP = plan(Action.STOP, Action.MARK_STOPPED, phase=Phase.PREPARE, empty_slot=True)


def actions(shown: Plan) -> list[str]:
    return [step.action.value for step in shown.steps]


def test_a_swap_takes_the_worker_out_first_and_puts_it_in_last() -> None:
    found = routed(SWAP, WORKER, IN, SETTINGS)
    assert actions(found) == [
        *("check-unit", "begin-swap", "take-out", "await-idle", "stop", "start", "mark-good"),
        "put-in",
    ]
    phases = {step.action: step.phase for step in found.steps}
    assert phases[Action.TAKE_OUT] is Phase.SWAP
    assert phases[Action.PUT_IN] is Phase.CONFIRM
    assert all(step.reason for step in found.steps if step not in SWAP.steps)
    assert found.notes == ()


def test_a_slot_that_serves_for_the_first_time_is_put_in() -> None:
    assert actions(routed(FIRST, WORKER, OUT, SETTINGS)) == [*actions(FIRST), "put-in"]


def test_a_stop_takes_the_worker_out_and_puts_nothing_in() -> None:
    found = routed(STOP, WORKER, IN, SETTINGS)
    assert actions(found) == ["take-out", "await-idle", "stop", "mark-stopped"]
    assert {step.phase for step in found.steps} == {Phase.PREPARE}


def test_what_is_stopped_and_still_listed_is_taken_out() -> None:
    nothing = Plan("h2", "gpu1", (), None)
    assert actions(routed(nothing, WORKER, IN, SETTINGS)) == ["take-out"]
    assert actions(routed(nothing, WORKER, OUT, SETTINGS)) == []


def test_what_serves_already_is_put_in_only_if_the_router_has_it_not() -> None:
    nothing = Plan("h2", "gpu1", (), CANDIDATE)
    assert actions(routed(nothing, WORKER, IN, SETTINGS)) == []
    found = routed(nothing, WORKER, OUT, SETTINGS)
    assert actions(found) == ["put-in"]
    assert found.steps[0].phase is Phase.PREPARE
    elsewhere = replace(IN, listed={WORKER.name: "http://10.0.0.9:30001"})
    assert actions(routed(nothing, WORKER, elsewhere, SETTINGS)) == ["put-in"]


def test_the_only_worker_is_taken_out_with_a_warning() -> None:
    alone = RouterFacts("up", "", {WORKER.name: WORKER.url}, {}, (READY,))
    (note,) = routed(SWAP, WORKER, alone, SETTINGS).notes
    assert "only worker" in note
    not_fit = replace(alone, workers=(READY, replace(OTHER, status="not_ready")))
    assert "only worker" in routed(SWAP, WORKER, not_fit, SETTINGS).notes[0]


def served(name: str, *models: str, status: str = "ready") -> RouterWorker:
    return RouterWorker(name, frozenset(), f"http://{name}", status, 0, frozenset(models))


@pytest.mark.parametrize(
    ("workers", "listed", "out", "alone", "told"),
    [
        ((served("h1/gpu0", "m"),), ["h1/gpu0"], {}, False, ""),
        ((served("h1/gpu0", "other"),), ["h1/gpu0"], {}, True, "only worker"),
        # It has just been taken out by another operator, and the router does not know it yet.
        ((served("h1/gpu0", "m"),), [], {"h1/gpu0": ["m"]}, False, "until h1/gpu0 is back"),
        ((), [], {"h1/gpu0": ["m"]}, False, "until h1/gpu0 is back"),
        ((), ["h1/gpu0"], {"h1/gpu0": ["m"]}, False, "until h1/gpu0 is back"),
        ((), [], {"h1/gpu0": ["other"]}, True, "only worker"),
        ((), [], {WORKER.name: ["m"]}, True, "only worker"),
        # It has come back with another model.
        ((served("h1/gpu0", "o"),), ["h1/gpu0"], {"h1/gpu0": ["m"]}, True, "only worker"),
        # Somebody else has put it in: it is on no list.
        ((replace(served("h1", "m"), name="http://h1"),), [], {}, False, ""),
    ],
)
def test_who_swaps_at_the_same_time_is_waited_for(
    workers: tuple[RouterWorker, ...],
    listed: list[str],
    out: dict[str, list[str]],
    alone: bool,
    told: str,
) -> None:
    facts = RouterFacts(
        "up",
        listed={name: f"http://{name}" for name in (*listed, WORKER.name)},
        moved={},
        workers=(served(WORKER.name, "m"), *workers),
        out={name: frozenset(models) for name, models in out.items()},
    )
    found = routed(SWAP, WORKER, facts, SETTINGS)
    (step,) = (step for step in found.steps if step.action is Action.TAKE_OUT)
    assert step.alone is alone
    assert told in " ".join(found.notes)
    assert bool(found.notes) is bool(told)


@pytest.mark.parametrize(
    ("state", "wanted", "told"),
    [
        ("unreachable", ["put-in"], "cannot be reached"),
        ("down", ["take-out", "put-in"], "is down"),
        ("absent", [], "`ddtreectl router deploy`"),
    ],
)
def test_a_router_that_is_not_there_blocks_nothing(
    state: State, wanted: list[str], told: str
) -> None:
    listed = None if state == "unreachable" else IN.listed
    facts = RouterFacts(state, "no answer", listed, {})
    found = routed(SWAP, WORKER, facts, SETTINGS)
    assert [step for step in actions(found) if step not in actions(SWAP)] == wanted
    assert found.refusals == ()
    assert told in found.notes[-1]


@pytest.mark.parametrize("kind", [SWAP, FIRST, Plan("h2", "gpu1", (), CANDIDATE)])
def test_a_service_that_the_router_cannot_reach_is_refused_before_anything_changes(
    kind: Plan,
) -> None:
    alone = EVERYWHERE.model_copy(update={"address": "127.0.0.1"})
    found = routed(
        replace(kind, candidate=replace(CANDIDATE, service=alone)), WORKER, OUT, SETTINGS
    )
    assert "listens on 127.0.0.1 alone, and the router asks 10.0.0.2" in found.refusals[0]
    assert "`ddtreectl deploy`" in found.refusals[0]
    assert found.steps == kind.steps


def test_a_slot_whose_service_was_moved_takes_no_other() -> None:
    moved = replace(OUT, moved={WORKER.name: OTHER.name})
    found = routed(SWAP, WORKER, moved, SETTINGS)
    assert "was moved to `h1/gpu0`" in found.refusals[0]
    assert "`ddtreectl router forget h2/gpu1`" in found.refusals[0]
    assert routed(STOP, WORKER, moved, SETTINGS).refusals == ()


def answer(body: str, status: int = 200) -> Answer:
    return Answer("http://127.0.0.1:8000/workers", status, body)


def test_workers_are_read_by_the_names_of_the_list() -> None:
    body = (
        '{"workers": [{"id": "01a2", "url": "http://10.0.0.2:30001", "status": "draining", '
        '"load": 3, "labels": {"smg.ai/discovery-id": "h2/gpu1 for h3/gpu0"}}, {"url": 5}, 7, '
        '{"url": "http://10.0.0.9:1", "labels": null}]}'
    )
    assert parse_workers(answer(body)) == (
        RouterWorker("h2/gpu1", frozenset({"h3/gpu0"}), "http://10.0.0.2:30001", "draining", 3),
        RouterWorker("http://10.0.0.9:1", frozenset(), "http://10.0.0.9:1", "unknown", None),
    )


@pytest.mark.parametrize(
    ("body", "status"), [("{}", 200), ("no JSON", 200), ('{"workers": []}', 503)]
)
def test_what_is_no_list_of_workers_is_none(body: str, status: int) -> None:
    assert parse_workers(answer(body, status)) is None


def test_a_list_that_is_damaged_is_none() -> None:
    assert parse_list('{"workers": {"a": "u"}, "moved": {"b": "a"}}') == WorkerList(
        {"a": "u"}, {"b": "a"}
    )
    told = parse_list(
        '{"workers": {}, "moved": {}, "revision": 7, "made": true, '
        '"out": {"a": {"models": ["m", 3], "until": 1e9}, "b": 5, "c": {"models": null}}}'
    )
    out = {"a": frozenset({"m"}), "b": frozenset[str](), "c": frozenset[str]()}
    assert told == WorkerList({}, {}, out, 7, made=True)
    assert parse_list('{"workers": ["a"], "moved": {}}') is None
    assert parse_list("") is None
