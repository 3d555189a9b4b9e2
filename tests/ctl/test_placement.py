"""Where a service goes. A case is a file: what is asked, the slots there are, and the choice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ddtreectl.facts.gpu import ComputeProcess, Gpu, Gpus
from ddtreectl.facts.moves import Move, move
from ddtreectl.facts.records import Records
from ddtreectl.inventory.model import HostEntry, Slot
from ddtreectl.inventory.select import Place
from ddtreectl.plan.assignment import Candidates, assign
from ddtreectl.plan.migration import MoveAction, SlotMove, downtime, steps
from ddtreectl.plan.moves import move_remarks
from ddtreectl.plan.placement import (
    Asked,
    Prospect,
    has_come,
    memory_by_weights,
    memory_held,
)
from tests.ctl.test_plan import BARE, SERVING, TREE, generation, process, spec, unit_text

FOLDER = Path(__file__).parent / "data/placement"
CASES = sorted(FOLDER.glob("*.yaml"))


def slot_of(name: str, case: dict[str, Any]) -> Place:
    host, _, slot_name = name.partition("/")
    gpus = case.get("gpus", [1])
    device = "gpu" if gpus else "cpu"
    slot = Slot.model_validate({"device": device, "gpus": gpus, "port": case.get("port", 30001)})
    entry = HostEntry.model_validate(
        {"address": "10.0.0.1", "slots": {slot_name: slot.model_dump()}}
    )
    return Place(host, entry, slot_name, slot)


def prospect(case: dict[str, Any]) -> Prospect:
    found = slot_of(case["name"], case)
    if "unreachable" in case:
        return Prospect(found, None, case["unreachable"])
    free = case.get("free", 90000)
    cards = tuple(
        Gpu(i, f"GPU-{i}", "card", (12, 0), None if free is None else free + 5, 5)
        for i in found.slot.gpus
    )
    unit = TREE.replace("gpu1", found.slot_name)
    records = Records(
        environments=frozenset({"engine-a"} if case.get("built", True) else ()),
        stopped=frozenset({found.slot_name} if case.get("stopped") else ()),
        generations=tuple(
            replace(generation(1), slot=found.slot_name, unit=unit)
            for _ in range(bool(case.get("serves") or case.get("down")))
        ),
    )
    facts = replace(BARE, gpus=Gpus("ok", "580", cards), records=records)
    if "came_from" in case:
        content = {"source": case["came_from"], "state": "moving"}
        records = replace(records, arrived={found.slot_name: move(content)})
        facts = replace(facts, records=records)
    if case.get("serves"):
        running = replace(SERVING.units[TREE], name=unit)
        facts = replace(facts, units={unit: running}, unit_files={unit: unit_text(1, "tree")})
    return Prospect(
        place=found,
        facts=facts,
        refusals=tuple(case.get("refusals", ())),
        misfit=case.get("misfit", ""),
        environment="engine-a",
        missing=tuple(filter(None, [case.get("missing")])),
        copied=tuple(("/srv/m", size) for size in filter(None, [case.get("copied")])),
    )


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_the_choice(path: Path) -> None:
    case = YAML(typ="safe").load(path)
    wanted = case["asked"]
    asked = Asked(
        slot_of("ct129/gpu1", wanted),
        spec().model_copy(update={"model": wanted.get("model", "bundled")}),
        wanted.get("memory"),
        frozenset(wanted.get("replicas", ())),
        leave_host=wanted.get("leave_host", False),
    )
    (found,) = assign([Candidates(asked, [prospect(entry) for entry in case["prospects"]])])
    assert (found.chosen.name if found.chosen else None) == case["chosen"]
    assert len(found.judged) == len(case["prospects"])
    told = {entry.prospect.name: "; ".join(entry.rejections) for entry in found.judged}
    for name, reason in case.get("rejected", {}).items():
        assert reason in told[name]
    accepted = {name for name, reasons in told.items() if not reasons}
    assert (found.chosen is None) == (not accepted)
    assert not accepted & set(case.get("rejected", {}))


def test_what_was_deployed_after_a_move_was_begun_has_not_come_by_it() -> None:
    target = slot_of("gpuhost/gpu1", {})
    note = move({"source": "ct129/gpu1", "state": "moving"})
    facts = replace(SERVING, records=replace(SERVING.records, arrived={"gpu1": note}))
    assert has_come("ct129/gpu1", spec(), target, facts)
    assert not has_come("ct129/gpu1", spec(budget=32), target, facts)
    assert not has_come("ct129/gpu2", spec(), target, facts)
    assert not has_come("ct129/gpu1", spec(), target, replace(facts, units={}))
    ended = replace(facts.records, arrived={"gpu1": note.now("moved")})
    assert not has_come("ct129/gpu1", spec(), target, replace(facts, records=ended))


def test_a_service_needs_what_it_holds() -> None:
    source = slot_of("ct129/gpu1", {})
    card = Gpu(1, "GPU-1", "card", (12, 0), 97887, 61004)
    pids = {900: process(900, unit=TREE), 901: process(901, ppid=900)}
    held = (
        ComputeProcess("GPU-1", 900, 60000),
        ComputeProcess("GPU-1", 901, 500),
        ComputeProcess("GPU-1", 47028, 9000),  # not its own
        ComputeProcess("GPU-0", 900, 7),
    )
    facts = replace(SERVING, gpus=Gpus("ok", "580", (card,), held), processes=pids)
    assert memory_held(source, facts) == 60500
    lost = replace(facts, gpus=Gpus("ok", "580", (replace(card, fault="lost"),), held))
    assert memory_held(source, lost) is None
    assert memory_held(source, replace(facts, processes={})) is None


def test_a_service_that_holds_nothing_needs_what_its_weights_make_likely() -> None:
    service = spec().model_copy(update={"model": "/srv/m", "drafter": "/srv/d"})
    sizes = {"/srv/m": 50 << 30, "/srv/d": 5 << 30}
    assert memory_by_weights(service, replace(BARE, weights=sizes)) == int(1.2 * 55 * 1024) + 2048
    assert memory_by_weights(service, BARE) is None
    assert memory_by_weights(service, None) is None
    two = service.model_copy(update={"device": "cuda:2,3", "backend": "sglang"})
    assert memory_by_weights(two, replace(BARE, weights=sizes)) == int(1.2 * 55 * 1024 / 2) + 2048
    assert memory_by_weights(spec(), None) == 1024


def moving(state: str | None = None, **case: Any) -> SlotMove:
    known = SlotMove(slot_of("ct129/gpu1", {}), spec(), 3, serves=False, known_from="ct129")
    under_way = None
    if state:
        content = {"source": "ct129/gpu1", "target": "ct200/gpu1", "state": state}
        under_way = move({**content, "service": spec().model_dump(mode="json")})
    return replace(known, under_way=under_way, target=prospect({"name": "ct200/gpu1", **case}))


def test_everything_that_can_fail_comes_before_the_first_start() -> None:
    planned = steps(
        [moving(built=False, copied=1), replace(moving(), source=slot_of("ct129/gpu2", {}))],
        cordons=["ct129:1", "ct129:2"],
    )
    assert [step.action for step in planned] == [
        MoveAction.CORDON,
        MoveAction.CORDON,
        MoveAction.ANNOUNCE,
        MoveAction.ANNOUNCE,
        MoveAction.PROVISION,
        MoveAction.COPY_WEIGHTS,
        MoveAction.START,
        MoveAction.MARK_MOVED,
        MoveAction.FENCE,
        MoveAction.START,
        MoveAction.MARK_MOVED,
        MoveAction.FENCE,
    ]


def test_what_several_services_need_on_a_host_is_brought_once() -> None:
    one = moving(built=False, copied=1)
    two = replace(one, source=slot_of("ct129/gpu2", {}))
    planned = steps([one, two, replace(one, source=slot_of("ct129/gpu3", {}), refusals=("no",))])
    shared = {step.action: step.places for step in planned if len(step.places) > 1}
    assert shared == dict.fromkeys(
        [MoveAction.PROVISION, MoveAction.COPY_WEIGHTS], (one.source, two.source)
    )
    assert all("gpu3" not in step.title for step in planned)


@pytest.mark.parametrize(
    ("state", "first"),
    [(None, MoveAction.ANNOUNCE), ("moving", MoveAction.ANNOUNCE), ("moved", MoveAction.FENCE)],
)
def test_a_move_goes_on_where_it_was(state: str | None, first: MoveAction) -> None:
    planned = steps([moving(state)])
    assert planned[0].action is first
    assert planned[-1].action is MoveAction.FENCE


def test_the_downtime_that_is_to_be_expected() -> None:
    assert downtime(replace(moving(), serves=True), None).startswith("none: ct129/gpu1 serves")
    down = downtime(moving(built=False, copied=1), 41.0)
    assert "once the environment is built and the weights are copied" in down
    assert "about 41 s as last time" in down
    assert "180 s at the most" in downtime(moving(), None)


def gone(state: str) -> Move:
    return move({"source": "ct129/gpu1", "target": "ct200/gpu1", "state": state, "at": "2026"})


def test_a_split_is_named() -> None:
    records = replace(SERVING.records, moved={"gpu1": gone("fenced")})
    (split,) = move_remarks("ct129", replace(SERVING, records=records), locked=False)
    assert "split: it runs here, although its service has moved to ct200/gpu1" in split.text
    assert "migrate ct129 --resume" in split.hint
    kept = BARE.records.with_moves((gone("moved"),))
    (pending,) = move_remarks("ct129", replace(BARE, records=kept), locked=False)
    assert "may start here again" in pending.text
    fenced = replace(BARE.records, moved={"gpu1": gone("fenced")})
    assert list(move_remarks("ct129", replace(BARE, records=fenced), locked=False)) == []


def test_the_target_names_what_is_not_fenced_or_was_interrupted() -> None:
    def said(state: str, *, locked: bool = False) -> list[str]:
        records = replace(BARE.records, arrived={"gpu1": gone(state)})
        facts = replace(BARE, records=records)
        return [remark.text for remark in move_remarks("ct200", facts, locked=locked)]

    assert "which is not fenced yet" in said("moved")[0]
    assert "was interrupted" in said("moving")[0]
    assert said("moving", locked=True) == []
    assert said("fenced") == []


def test_a_damaged_record_of_a_move_keeps_its_place() -> None:
    damaged = move({"service": 7, "state": "x"}, source="ct129/gpu1")
    assert (damaged.source, damaged.service, damaged.pending) == ("ct129/gpu1", None, True)
