"""Every sign of a GPU and its driver, on the host that is left and on the one that is gone to.

The signs are the cases of `test_gpu_verdicts`, of which each row of the table has one; what is
expected follows from the verdict that the case states.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtreectl.apply.kept_moves import KeptMoves, KeptServices
from ddtreectl.apply.leaving import Wanted
from ddtreectl.apply.survey import Survey
from ddtreectl.cli.context import Context
from ddtreectl.facts.driver import Driver
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.kernel_log import GpuError, KernelLog
from ddtreectl.facts.moves import move
from ddtreectl.facts.records import Records
from ddtreectl.inventory.environment import EnvironmentSettings
from ddtreectl.inventory.loader import load as load_inventory
from ddtreectl.inventory.select import find_target
from ddtreectl.inventory.service import Mode
from ddtreectl.plan.migration import MigrationPlan, MoveAction
from ddtreectl.plan.wish import seen
from tests.ctl.test_gpu_verdicts import CASES, facts_of, load
from tests.ctl.test_plan import BARE, SERVING, TREE, generation, spec, unit_text

SIGNS = {
    path.stem: load(path)
    for path in CASES
    if not {"together", "claims", "inventory"} & load(path).keys() and "settled" not in load(path)
}
INVENTORY = """\
hosts:
  ct129: {address: 10.1.2.129, gpus: 2, slots: {gpu1: {gpus: [1], port: 30001}}}
  ct200: {address: 10.1.2.200, gpus: 2, slots: {gpu1: {gpus: [1], port: 30001}}}
"""
HEALTHY: dict[str, Any] = {}


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Survey:
    """A survey that has not looked at any host yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "fleet.yaml"
    path.write_text(INVENTORY)
    inventory, opened = load_inventory(path), Context(path)
    return Survey(
        inventory=inventory,
        sessions={name: opened.session(inventory, name) for name in inventory.hosts},
        source=find_target(inventory, "ct129"),
        target=None,
        wanted=Wanted(),
        moves=KeptMoves(path),
        services=KeptServices(path),
    )


def host(case: dict[str, Any], base: HostFacts) -> HostFacts:
    """A host of which all but the GPUs is as in `base`."""
    found = facts_of(case)
    return replace(
        base,
        gpus=found.gpus,
        kernel_log=found.kernel_log,
        driver=Driver(**{"version": "580.95.05", **case.get("driver", {})}),
        processes={**found.processes, **base.processes},
    )


def plan(survey: Survey, source: dict[str, Any], target: dict[str, Any]) -> MigrationPlan:
    survey.facts = {"ct129": host(source, SERVING), "ct200": host(target, BARE)}
    return survey.plan()


@pytest.mark.parametrize("sign", SIGNS)
def test_a_service_leaves_whatever_its_host_has(survey: Survey, sign: str) -> None:
    case = SIGNS[sign]
    planned = plan(survey, case, HEALTHY)
    assert planned.refusals == ()
    (moved,) = planned.moves
    assert moved.target is not None
    assert moved.target.name == "ct200/gpu1"
    service = moved.service
    assert service is not None
    assert (service.mode, service.budget, service.topk) == (Mode.TREE, 16, 8)
    cordons = [s.title for s in planned.steps if s.action is MoveAction.CORDON]
    if case["verdict"] == "cordon-host":
        assert cordons == ["cordon ct129"]
    elif case.get("bad", {}).get("GPU 1") == "drain-gpu":
        assert cordons == ["cordon ct129:1"]
    else:
        assert cordons == []


@pytest.mark.parametrize("sign", SIGNS)
def test_no_service_goes_where_a_gpu_needs_somebody_to_act(survey: Survey, sign: str) -> None:
    case = SIGNS[sign]
    planned = plan(survey, HEALTHY, case)
    gpu = facts_of(case).gpus.at(1)
    told = gpu is not None and gpu.uuid and gpu.compute_capability and gpu.minor is not None
    bad = case["verdict"] == "cordon-host" or case.get("bad", {}).get("GPU 1") == "drain-gpu"
    if bad or not told or facts_of(case).gpus.state != "ok":
        assert planned.steps == ()
        assert "no slot takes ct129/gpu1: " in planned.refusals[0]
        placement = planned.moves[0].placement
        assert placement is not None
        reasons = {entry.prospect.name: entry.rejections for entry in placement.judged}
        assert reasons["ct200/gpu1"]
    else:
        assert planned.refusals == ()


def test_a_host_that_is_gone_is_left_by_what_this_machine_saw_last(survey: Survey) -> None:
    survey.facts = {"ct200": host(HEALTHY, BARE)}
    survey.unreachable = {"ct129": "`ct129` does not answer"}
    assert "what ct129/gpu1 serves is not known" in survey.plan().refusals[0]
    survey.services.note("ct129", {"gpu1": (spec(Mode.TREE, budget=32), 3)})
    planned = survey.plan()
    (moved,) = planned.moves
    assert moved.service is not None
    assert (moved.service.budget, moved.generation) == (32, 3)
    assert planned.steps[0].title == "cordon ct129"
    survey.wanted = Wanted(Mode.LINEAR)
    assert survey.plan().moves[0].service == spec(Mode.LINEAR, budget=32)


def test_of_a_host_that_is_gone_what_was_empty_has_nothing_to_move(survey: Survey) -> None:
    place = survey.source.places[0]
    survey.services.note("ct129", seen("ct129", place.host, host(HEALTHY, BARE)))
    survey.facts = {"ct200": host(HEALTHY, BARE)}
    survey.unreachable = {"ct129": "`ct129` does not answer"}
    planned = survey.plan()
    assert planned.empty
    assert planned.notes == ("nothing is to serve in ct129/gpu1",)


def test_a_stopped_slot_has_nothing_to_move(survey: Survey) -> None:
    records = Records(generations=(generation(1),), stopped=frozenset({"gpu1"}))
    survey.facts = {
        "ct129": replace(host(HEALTHY, BARE), records=records),
        "ct200": host(HEALTHY, BARE),
    }
    planned = survey.plan()
    assert planned.empty
    (note,) = planned.notes
    assert "stopped on purpose; `ddtreectl migrate ct129:1` moves it all the same" in note
    survey.source = find_target(survey.inventory, "ct129:1")
    (moved,) = survey.plan().moves
    assert moved.target is not None
    assert moved.downtime.startswith("it is down now; ")


def test_a_protected_service_moves_only_when_it_is_named(survey: Survey, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(INVENTORY.replace("port: 30001}", "port: 30001, protected: true}", 1))
    inventory = load_inventory(path)
    survey.source = find_target(inventory, "ct129")
    planned = plan(survey, HEALTHY, HEALTHY)
    assert planned.empty
    assert "is protected: it moves only when its GPU is named" in planned.notes[0]
    survey.source = find_target(inventory, "ct129:1")
    assert len(plan(survey, HEALTHY, HEALTHY).moves) == 1


def test_a_slot_that_serves_again_after_a_move_can_be_left_again(survey: Survey) -> None:
    content = {"source": "ct129/gpu1", "target": "ct200/gpu1", "state": "fenced"}
    bare = host(HEALTHY, BARE)
    survey.facts = {
        "ct129": host(HEALTHY, SERVING),
        "ct200": replace(bare, records=replace(bare.records, arrived={"gpu1": move(content)})),
    }
    assert survey.plan().steps[0].action is MoveAction.ANNOUNCE


def test_a_slot_that_was_opened_after_a_move_has_nothing_to_move(survey: Survey) -> None:
    """Its service serves elsewhere, so that to name its GPU must not have it serve twice."""
    content = {"source": "ct129/gpu1", "target": "ct200/gpu1", "state": "fenced"}
    records = Records(generations=(generation(1),), stopped=frozenset({"gpu1"}))
    there = host(HEALTHY, SERVING)
    survey.facts = {
        "ct129": replace(host(HEALTHY, BARE), records=records),
        "ct200": replace(there, records=replace(there.records, arrived={"gpu1": move(content)})),
    }
    for words in ("ct129", "ct129:1"):
        survey.source = find_target(survey.inventory, words)
        planned = survey.plan()
        assert planned.empty
        assert planned.notes == (
            "nothing is to serve in ct129/gpu1: its service has moved to ct200/gpu1",
        )


THREE = """\
hosts:
  ct129:
    address: 10.1.2.129
    gpus: 3
    slots: {gpu1: {gpus: [1], port: 30001}, gpu2: {gpus: [2], port: 30002}}
  ct200: {address: 10.1.2.200, gpus: 2, slots: {gpu1: {gpus: [1], port: 30001}}}
"""


def test_one_that_cannot_move_does_not_keep_the_others_from_it(
    survey: Survey, tmp_path: Path
) -> None:
    (tmp_path / "three.yaml").write_text(THREE)
    inventory = load_inventory(tmp_path / "three.yaml")
    survey.inventory, survey.source = inventory, find_target(inventory, "ct129")
    opened = Context(tmp_path / "three.yaml")
    survey.sessions = {name: opened.session(inventory, name) for name in inventory.hosts}
    source = host(HEALTHY, SERVING)
    card = replace(source.gpus.gpus[1], index=2, uuid="GPU-2", pci="0000:2b:00")
    gpus = (source.gpus.gpus[0], replace(source.gpus.gpus[1], pci="0000:1b:00"), card)
    both = tuple(GpuError(f"0000:{n}b:00", 95, times=(1.0,)) for n in (1, 2))
    unit = TREE.replace("gpu1", "gpu2")
    survey.facts = {
        "ct129": replace(
            source,
            gpus=replace(source.gpus, gpus=gpus),
            kernel_log=KernelLog("journal", 2.0, both),
            units={**source.units, unit: replace(source.units[TREE], name=unit)},
            unit_files={**source.unit_files, unit: unit_text(2, "tree")},
            records=replace(
                source.records,
                generations=(
                    generation(1),
                    replace(generation(2), slot="gpu2", unit=unit),
                ),
            ),
        ),
        "ct200": host(HEALTHY, BARE),
    }
    planned = survey.plan()
    assert planned.refusals == ()
    assert [move.name for move in planned.stuck] == ["ct129/gpu2"]
    (reason,) = planned.stuck[0].refusals
    assert "no slot takes ct129/gpu2: " in reason
    assert "ct200/gpu1: ct129/gpu1 moves there" in reason
    assert [s.title for s in planned.steps][:2] == ["cordon ct129:1", "cordon ct129:2"]
    assert {place.slot_name for step in planned.steps for place in step.places} == {"gpu1"}


@pytest.mark.parametrize(
    ("state", "steps"),
    [
        ("moving", ["announce", "provision", "start", "mark-moved", "fence"]),
        ("moved", ["fence"]),
        ("fenced", []),
    ],
)
def test_what_was_begun_goes_on_from_any_machine(
    survey: Survey, state: str, steps: list[str]
) -> None:
    """The record on the target is enough: this operator has kept nothing."""
    content = {"source": "ct129/gpu1", "target": "ct200/gpu1", "state": state, "generation": 1}
    arrived = move({**content, "service": spec().model_dump(mode="json"), "at": "2026"})
    bare = host(HEALTHY, BARE)
    source = host(HEALTHY, SERVING)
    if state == "fenced":
        source = replace(source, records=replace(source.records, moved={"gpu1": arrived}))
    survey.facts = {
        "ct129": source,
        "ct200": replace(bare, records=replace(bare.records, arrived={"gpu1": arrived})),
    }
    assert [step.action for step in survey.plan().steps] == steps


def test_a_wheelhouse_that_is_not_here_speaks_against_its_host_alone(survey: Survey) -> None:
    session = survey.sessions["ct200"]
    settings = EnvironmentSettings(wheelhouse="/nowhere")
    session.entry = session.entry.model_copy(update={"environment": settings})
    bare, source = host(HEALTHY, BARE), host(HEALTHY, SERVING)
    source = replace(source, records=replace(source.records, environments=frozenset()))
    survey.facts = {"ct129": source, "ct200": bare}
    (reason,) = survey.plan().refusals
    assert "no slot takes ct129/gpu1: ct200/gpu1: the wheelhouse `/nowhere` is no folder" in reason
    assert reason.endswith("; no other host has a finished environment")


def test_a_move_that_was_begun_elsewhere_is_ended(survey: Survey, tmp_path: Path) -> None:
    """Another TARGET is named than that of a move which was interrupted."""
    path = tmp_path / "fleet.yaml"
    other = "  ct201: {address: 10.1.2.201, gpus: 2, slots: {gpu1: {gpus: [1], port: 30001}}}\n"
    path.write_text(INVENTORY + other)
    inventory, opened = load_inventory(path), Context(path)
    survey.inventory, survey.source = inventory, find_target(inventory, "ct129")
    survey.sessions = {name: opened.session(inventory, name) for name in inventory.hosts}
    content = {"source": "ct129/gpu1", "target": "ct200/gpu1", "state": "moving", "generation": 1}
    begun = move({**content, "service": spec().model_dump(mode="json"), "at": "2026"})
    bare, source = host(HEALTHY, BARE), host(HEALTHY, SERVING)
    there = replace(bare, records=replace(bare.records, arrived={"gpu1": begun}))
    survey.facts = {"ct129": source, "ct200": there, "ct201": bare}

    def ends() -> list[str]:
        return [s.title for s in survey.plan().steps if s.action is MoveAction.ABANDON]

    assert ends() == [], "it goes on to where it was begun"
    survey.target = find_target(inventory, "ct201")
    assert ends() == ["end the move to ct200/gpu1 that was begun"]
    gone = replace(begun, target="ct201/gpu1", state="fenced", at="2027")
    survey.facts |= {
        "ct129": replace(source, records=replace(source.records, moved={"gpu1": gone})),
        "ct201": replace(bare, records=replace(bare.records, arrived={"gpu1": gone})),
    }
    survey.target = None
    assert ends() == ["end the move to ct200/gpu1 that was begun"]
