"""Chooses slots for several services at once, so that as many as can have one get one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddtreectl.inventory.service import BUNDLED
from ddtreectl.plan.placement import Asked, Judged, Placement, Prospect, judged, rank


@dataclass(frozen=True)
class Candidates:
    """A service, and the slots that might take it.

    Attributes:
        asked: what needs a place.
        prospects: the slots.
    """

    asked: Asked
    prospects: Sequence[Prospect]


def assign(services: Sequence[Candidates]) -> list[Placement]:
    """The placement of each service.

    Each gets the best slot that is left, in turn. One that finds none makes an earlier one go to
    another slot, if that helps (augmenting paths of a bipartite matching: H. W. Kuhn, 1955).
    """
    chooser = _Chooser(services)
    for number in range(len(services)):
        chooser.place(number)
    return [chooser.placement(number) for number in range(len(services))]


class _Chooser:
    def __init__(self, services: Sequence[Candidates]) -> None:
        self._services = services
        self._judged = [[judged(s.asked, p) for p in s.prospects] for s in services]
        self._taken: dict[str, int] = {}

    def place(self, number: int) -> None:
        for prospect in self._fitting(number):
            if prospect.name not in self._taken:
                self._taken[prospect.name] = number
                return
        self._make_room(number, set())

    def _make_room(self, number: int, tried: set[str]) -> bool:
        for prospect in self._fitting(number):
            name = prospect.name
            if name in tried:
                continue
            tried.add(name)
            if name not in self._taken or self._make_room(self._taken[name], tried):
                self._taken[name] = number
                return True
        return False

    def placement(self, number: int) -> Placement:
        own = next((name for name, n in self._taken.items() if n == number), None)
        found = [self._told(number, entry) for entry in self._judged[number]]
        found.sort(key=lambda entry: entry.prospect.name != own)
        return Placement(found[0].prospect if own else None, tuple(found))

    def _told(self, number: int, entry: Judged) -> Judged:
        """The judgement, with what another service has to do with it."""
        by = self._taken.get(entry.prospect.name, number)
        if by == number or entry.rejections:
            return entry
        source = self._services[by].asked.source
        said = f"{source.host_name}/{source.slot_name} moves there"
        return replace(entry, rejections=(said,))

    def _fitting(self, number: int) -> list[Prospect]:
        """What will do, the best first; a host that gets a replica now is one that has it."""
        asked = self._services[number].asked
        apart = asked.service.model != BUNDLED
        gets = {
            name.partition("/")[0]
            for name, n in self._taken.items()
            if apart
            and n != number
            and self._services[n].asked.service.model == asked.service.model
        }
        wanted = replace(asked, replicas=asked.replicas | gets)
        fitting = [entry.prospect for entry in self._judged[number] if not entry.rejections]
        return sorted(fitting, key=lambda prospect: rank(wanted, prospect))
