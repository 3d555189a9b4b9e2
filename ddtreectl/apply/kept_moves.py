"""What the operator keeps so that a host which is gone can be moved from, and fenced later.

Moves are on their target too. What served in a slot is here alone: a host that does not answer
cannot say it.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from ddtreectl.apply.operator_state import OperatorState
from ddtreectl.facts.moves import Move, move
from ddtreectl.facts.output import as_int
from ddtreectl.inventory.service import ServiceSpec

Seen = Mapping[str, tuple[ServiceSpec, int] | None]
"""What serves, with its generation, by slot; None where nothing is to serve any more."""


class KeptMoves:
    """The moves that have not ended, by the host that they come from.

    Args:
        inventory: the inventory file.
    """

    def __init__(self, inventory: Path) -> None:
        self._state = OperatorState(inventory, "moves")

    def of(self, host: str) -> tuple[Move, ...]:
        """The moves from a host."""
        entries = sorted(self._state.of(host).items())
        return tuple(
            move(content, source=f"{host}/{slot}")
            for slot, content in entries
            if isinstance(content, dict)
        )

    def keep(self, entry: Move) -> None:
        """Keep a move, in place of an earlier one from its slot.

        Raises:
            DdtreectlError: it cannot be written.
        """
        with self._state.changed() as content:
            entries = content.get(entry.source_host)
            entries = entries if isinstance(entries, dict) else {}
            content[entry.source_host] = {**entries, entry.source_slot: entry.to_json()}

    def forget(self, entry: Move) -> None:
        """Forget the move from a slot; one that is not there is no error."""
        if entry.source_slot not in self._state.of(entry.source_host):
            return
        with self._state.changed() as content:
            entries = content.get(entry.source_host)
            entries = dict(entries) if isinstance(entries, dict) else {}
            entries.pop(entry.source_slot, None)
            content.pop(entry.source_host, None)
            if entries:
                content[entry.source_host] = entries


class KeptServices:
    """What was last seen to serve, by host and slot.

    Args:
        inventory: the inventory file.
    """

    def __init__(self, inventory: Path) -> None:
        self._state = OperatorState(inventory, "services")

    def of(self, host: str, slot: str) -> tuple[ServiceSpec, int | None] | None:
        """The service of a slot and its generation, or None where none was seen."""
        content = self._state.of(host).get(slot)
        if not isinstance(content, dict):
            return None
        try:
            service = ServiceSpec.model_validate(content.get("service"), strict=False)
        except ValidationError:
            return None
        return service, as_int(content.get("generation"))

    def idle(self, host: str, slot: str) -> bool:
        """Whether nothing was to serve in a slot when it was seen last."""
        content = self._state.of(host).get(slot)
        return isinstance(content, dict) and "service" in content and content["service"] is None

    def note(self, host: str, seen: "Seen") -> None:
        """Keep what was seen of the slots of a host; what is as before is not written again.

        Raises:
            DdtreectlError: it cannot be written.
        """
        kept = self._state.of(host)
        if _noted(kept, seen) == kept:
            return
        with self._state.changed() as content:  # what others have noted meanwhile is kept
            before = content.get(host)
            content[host] = _noted(before if isinstance(before, dict) else {}, seen)


def _noted(before: Mapping[str, object], seen: Seen) -> dict[str, object]:
    """What is kept of the slots of a host, with what was seen of some of them."""
    after = dict(before)
    for slot, found in seen.items():
        service, generation = found or (None, None)
        told = service.model_dump(mode="json") if service else None
        after[slot] = {"service": told, "generation": generation}
    return after
