"""Slots for several services at once: as many as can have one get one, and each the best."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ddtreectl.plan.assignment import Candidates, assign
from ddtreectl.plan.placement import Asked, Placement
from tests.ctl.test_placement import prospect, slot_of, spec

MEMORY = [10, 20, 30]


def service(number: int, memory: int, model: str = "bundled") -> Asked:
    source = slot_of(f"ct129/gpu{number}", {"gpus": [number]})
    return Asked(source, spec().model_copy(update={"model": model}), memory)


def placed(asked: list[Asked], slots: list[tuple[str, int]]) -> list[Placement]:
    prospects = [prospect({"name": name, "free": free}) for name, free in slots]
    return assign([Candidates(entry, prospects) for entry in asked])


def chosen(placements: list[Placement]) -> list[str | None]:
    return [entry.chosen.name if entry.chosen else None for entry in placements]


def test_each_gets_the_best_that_is_left() -> None:
    slots = [("ct200/gpu1", 20), ("ct200/gpu2", 30)]
    found = placed([service(1, 10), service(2, 10)], slots)
    assert chosen(found) == ["ct200/gpu2", "ct200/gpu1"]
    told = {entry.prospect.name: entry.rejections for entry in found[1].judged}
    assert told == {"ct200/gpu1": (), "ct200/gpu2": ("ct129/gpu1 moves there",)}


def test_a_small_service_makes_room_for_a_large_one() -> None:
    slots = [("ct200/gpu1", 20), ("ct200/gpu2", 30)]
    assert chosen(placed([service(1, 10), service(2, 30)], slots)) == ["ct200/gpu1", "ct200/gpu2"]


def test_what_finds_no_slot_is_told_why() -> None:
    found = placed([service(1, 10), service(2, 30), service(3, 10)], [("ct200/gpu1", 30)])
    assert chosen(found) == ["ct200/gpu1", None, None]
    assert found[1].judged[0].rejections == ("ct129/gpu1 moves there",)


def test_replicas_that_leave_together_are_kept_apart() -> None:
    slots = [("ct200/gpu1", 30), ("ct200/gpu2", 30), ("ct201/gpu1", 20)]
    for model, wanted in (("/srv/m", "ct201/gpu1"), ("bundled", "ct200/gpu2")):
        asked = [service(1, 10, model), service(2, 10, model)]
        assert chosen(placed(asked, slots)) == ["ct200/gpu1", wanted]


@given(
    st.lists(st.sampled_from(MEMORY), min_size=1, max_size=4),
    st.lists(st.sampled_from(MEMORY), max_size=4),
)
def test_as_many_as_can_have_a_slot_get_one(wanted: list[int], free: list[int]) -> None:
    slots = [(f"ct200/gpu{number}", room) for number, room in enumerate(free)]
    found = chosen(placed([service(n, need) for n, need in enumerate(wanted)], slots))
    taken = [name for name in found if name]
    assert len(set(taken)) == len(taken)
    room = dict(slots)
    assert all(room[name] >= need for name, need in zip(found, wanted, strict=True) if name)
    padded = free + [0] * len(wanted)
    most = max(
        sum(r >= need for r, need in zip(order, wanted, strict=False))
        for order in permutations(padded, len(wanted))
    )
    assert len(taken) == most
