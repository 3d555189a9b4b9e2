"""What of a host is of no use any more: generations and environments. Pure.

Kept of every slot: what serves, what a failed deploy would return to, the newest good ones, what an
unfinished swap names, and the newest of all, whose number must not be given twice. Of environments:
those that a kept generation runs from, those that were provisioned for the next deploy, and those
that another root of the host claims; one whose build was interrupted goes. Of slots that the
inventory does not have, everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.select import Place
from ddtreectl.plan.wish import installed_generation, last_good, serving


@dataclass(frozen=True)
class Superfluous:
    """What can go.

    Attributes:
        generations: numbers by slot.
        units: unit files that belong to one of these, and do not run.
        environments: names.
        used: the environments that stay because this root uses them.
        others: those that stay because other roots of the host do, and this one does not.
        kept: generations that stay, with the reason, by slot.
    """

    generations: Mapping[str, tuple[int, ...]]
    units: tuple[str, ...]
    environments: tuple[str, ...]
    used: tuple[str, ...]
    others: tuple[str, ...]
    kept: Mapping[str, Mapping[int, str]]

    @property
    def empty(self) -> bool:
        """Whether everything is of use."""
        return not self.environments and not any(self.generations.values())


def superfluous(name: str, entry: HostEntry, facts: HostFacts, keep: int) -> Superfluous:
    """What of a host can go.

    Args:
        name: the host.
        entry: its entry in the inventory.
        facts: what is on it.
        keep: how many good generations of a slot stay at least.
    """
    kept: dict[str, dict[int, str]] = {}
    gone: dict[str, tuple[int, ...]] = {}
    units: list[str] = []
    for slot_name, slot in entry.slots.items():
        place = Place(name, entry, slot_name, slot)
        kept[slot_name] = _kept(place, facts, keep)
        entries = facts.records.of_slot(slot_name)
        gone[slot_name] = tuple(e.number for e in entries if e.number not in kept[slot_name])
        units += [
            unit
            for unit in sorted({e.unit for e in entries})
            if not facts.unit(unit).running
            and installed_generation(facts.unit_files.get(unit, "")) in gone[slot_name]
        ]
    found = facts.records
    used = {
        generation.environment
        for generation in found.generations
        if generation.number not in gone.get(generation.slot, ())
    } | {entry.environment for entry in found.provisioned.values()}
    there = found.environments | found.unfinished
    return Superfluous(
        generations=gone,
        units=tuple(units),
        environments=tuple(sorted(there - used - found.claimed)),
        used=tuple(sorted(there & used)),
        others=tuple(sorted((there & found.claimed) - used)),
        kept=kept,
    )


def _kept(place: Place, facts: HostFacts, keep: int) -> dict[int, str]:
    entries = facts.records.of_slot(place.slot_name)
    good = sorted(
        (entry for entry in entries if entry.status == "good"),
        key=lambda entry: (entry.changed_at, entry.number),
    )
    reasons: dict[int, str] = {}
    if entries:
        reasons[max(entry.number for entry in entries)] = "the newest"
    reasons |= {entry.number: "good" for entry in good[len(good) - min(keep, len(good)) :]}
    if (swap := facts.records.swap_of(place.slot_name)) is not None:
        reasons |= {n: "an unfinished swap" for n in (swap.to, swap.back) if n is not None}
    if (last := last_good(place, facts)) is not None:
        reasons[last.number] = "the last good one"
    if (now := serving(place, facts)) is not None:
        reasons[now.number] = "serves"
    return reasons
