"""The notes on moves: on the host that a service goes to, and with the operator."""

import json

from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.session import Session
from ddtreectl.apply.survey import Survey
from ddtreectl.errors import DdtreectlError, StepError
from ddtreectl.facts.moves import Move
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.select import Place

REASON = "its services migrate"
"""How the reason of a migration's cordon begins; an undo ends it."""


def place_of(survey: Survey, name: str) -> tuple[Session, Place]:
    """The slot called `host/slot`, with a session.

    Raises:
        StepError: the inventory does not have it.
    """
    host, _, slot = name.partition("/")
    session = survey.sessions.get(host)
    if session is None or slot not in session.entry.slots:
        raise StepError(
            f"the service has moved to {name}, which the inventory does not have",
            hint="put that slot back into the inventory",
        )
    return session, Place(host, session.entry, slot, session.entry.slots[slot])


def write(session: Session, place: Place, noted: Move) -> None:
    """Note a move on its target."""
    path = session.layout.arrived(place.slot_name)
    session.host.put(path, json.dumps(noted.to_json(), sort_keys=True).encode())


def rivals(survey: Survey, noted: Move) -> list[Move]:
    """Moves of the same service to other slots, noted since the survey by somebody else."""

    def look(name: str) -> list[Move]:
        known = survey.facts[name].records.arrived
        found = survey.sessions[name].gather(only=("records",)).records.arrived
        return [
            move
            for slot, move in found.items()
            if move.source == noted.source and f"{name}/{slot}" != noted.target
            if move.state != "fenced" and move != known.get(slot)
        ]

    outcomes = [outcome for _, outcome in on_each(list(survey.facts), look)]
    return [m for outcome in outcomes if not isinstance(outcome, DdtreectlError) for m in outcome]


def fenced(session: Session, move: Move, lock_wait: float) -> bool:
    """Fence the source of a move, whose target serves. Returns whether nothing of it is left."""
    others = tuple(m for m in session.moves if m.source_slot != move.source_slot)
    session.moves = (*others, move.now("moved"))
    lock = HostLock(session.host, session.layout, session.operator, wait=lock_wait)
    with locked(session, lock):  # which is a contact, and fences
        return all(m.source_slot != move.source_slot for m in session.moves)
