"""What an operator wants for one slot, with everything that a plan needs to know of it."""

from dataclasses import dataclass

from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import base_url
from ddtreectl.facts.records import Generation
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.plan.step import Candidate


@dataclass(frozen=True)
class Wish:
    """A candidate for a place.

    Attributes:
        place: where.
        candidate: what.
        argv: the command line of the service, for checks.
        force: swap even if the slot serves the same already.
        new_gpu: the slot may be bound to another card than before.
        refusal: why the host can have no environment for it, or nothing.
    """

    place: Place
    candidate: Candidate
    argv: tuple[str, ...] = ()
    force: bool = False
    new_gpu: bool = False
    refusal: str = ""


def serving(place: Place, facts: HostFacts) -> Generation | None:
    """The generation that runs in a slot, by the running unit and the file of that unit."""
    for unit in facts.running_units(place.slot_name):
        number = installed_generation(facts.unit_files.get(unit.name, ""))
        for generation in facts.records.of_slot(place.slot_name):
            if generation.number == number and generation.unit == unit.name:
                return generation
    return None


def serves(place: Place, facts: HostFacts) -> bool:
    """Whether what runs in a slot is good and says that it is ready for requests."""
    now = serving(place, facts)
    if now is None or now.status != "good":
        return False
    ready = facts.answers.get(f"{base_url(place.slot.address, place.slot.port)}/ready")
    return ready is not None and ready.ok


def current(place: Place, facts: HostFacts) -> Generation | None:
    """What a reader wants to see of a slot: what serves, else what would, else what was tried."""
    entries = facts.records.of_slot(place.slot_name)
    last = entries[-1] if entries else None
    return serving(place, facts) or last_good(place, facts) or last


def seen(name: str, host: HostEntry, facts: HostFacts) -> dict[str, tuple[ServiceSpec, int] | None]:
    """What serves in the slots of a host, with its generation; None where nothing is to.

    A slot that should serve and does not is left out: what was seen of it before still holds.
    """
    found: dict[str, tuple[ServiceSpec, int] | None] = {}
    for slot_name, slot in host.slots.items():
        now = serving(Place(name, host, slot_name, slot), facts)
        if now is not None and now.service is not None and now.status == "good":
            found[slot_name] = (now.service, now.number)
        elif slot_name in {*facts.records.stopped, *facts.records.moved} or not (
            facts.records.of_slot(slot_name) or "records" in facts.missing
        ):
            found[slot_name] = None
    return found


def installed_generation(unit_text: str) -> int | None:
    """The generation that a unit file belongs to, or None for a foreign file."""
    section = unit_text.partition("\n[X-DDTree]\n")[2]
    for line in section.splitlines():
        key, _, value = line.partition("=")
        if key == "Generation" and value.isdecimal():
            return int(value)
    return None


def last_good(place: Place, facts: HostFacts) -> Generation | None:
    """The newest good generation of a slot, by the time that it was last found good."""
    good = [entry for entry in facts.records.of_slot(place.slot_name) if entry.status == "good"]
    return max(good, key=lambda entry: (entry.changed_at, entry.number), default=None)


def next_number(place: Place, facts: HostFacts) -> int:
    """The number of the next generation: one more than any that there was."""
    return max((entry.number for entry in facts.records.of_slot(place.slot_name)), default=0) + 1
