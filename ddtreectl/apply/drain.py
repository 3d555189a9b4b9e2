"""Empties cordoned slots: services are stopped gracefully, those of a host one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError, ExitCode, UnreachableError
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place, Target
from ddtreectl.plan.wish import current

State = Literal[
    "stopped", "empty", "protected", "failed", "unreachable", "stopping", "serving", "unknown"
]
LEFT: frozenset[State] = frozenset({"stopping", "serving", "unknown"})
"""What an interrupted drain leaves."""


@dataclass(frozen=True)
class Drained:
    """What became of a slot.

    Attributes:
        place: the slot.
        state: `stopped`; `empty`, because nothing ran; `protected`, and left as it is; `failed`,
            because it does not stop; `unreachable`, and nobody knows; and after an interruption
            `stopping` (systemd goes on with it), `serving` or `unknown`.
        said: what went wrong, or what goes on.
        hint: what to do about it.
        exit_code: of the failure.
    """

    place: Place
    state: State
    said: str = ""
    hint: str = ""
    exit_code: ExitCode = ExitCode.DONE


def affected(targets: Sequence[Target]) -> Iterator[tuple[Place, bool]]:
    """The slots of some targets, each once, and whether its service may be stopped.

    A slot that is protected is stopped only where one of its GPUs is named.
    """
    found: dict[tuple[str, str], tuple[Place, bool]] = {}
    for target in targets:
        for place in target.places:
            name = place.host_name, place.slot_name
            allowed = not place.slot.protected or target.gpu is not None
            before = found.get(name)
            found[name] = (place, allowed or (before is not None and before[1]))
    yield from found.values()


def protected(place: Place) -> Drained:
    """What became of a slot that is protected and was not named."""
    gpus = " ".join(f"{place.host_name}:{index}" for index in place.slot.gpus[:1])
    how = f"`ddtreectl drain {gpus}`" if gpus else f"`ddtreectl stop {place.words}`"
    return Drained(place, "protected", "its service goes on", f"{how} stops it as well")


def drain(session: Session, place: Place, lock_wait: float = 0.0) -> Drained:
    """Stop the service of a slot, and keep it stopped; for a caller that watches for signals."""
    try:
        outcome = Deployment(session, place, lock_wait=lock_wait).stop()
    except DdtreectlError as error:
        if isinstance(error.__cause__, InterruptedByOperatorError):
            return left(session, place)
        said = f"{error.message}\n{error.cause}".strip()
        state: State = "unreachable" if isinstance(error, UnreachableError) else "failed"
        return Drained(place, state, said, error.hint, error.exit_code)
    except InterruptedByOperatorError:
        return left(session, place)
    return Drained(place, "stopped" if outcome.applied else "empty")


def left(session: Session, place: Place) -> Drained:
    """What goes on in a slot whose drain was interrupted, or never begun."""
    try:
        facts = session.slots()
    except DdtreectlError as error:
        return Drained(place, "unknown", error.message, error.hint, ExitCode.FAILED)
    running = [u for name in slot_units(place.slot_name) if (u := facts.unit(name)).running]
    if not running and current(place, facts) is None:
        return Drained(place, "empty")
    if not running and place.slot_name in facts.records.stopped:
        return Drained(place, "stopped")
    if not running:
        said = "its service has ended, and is not marked as stopped on purpose"
        return Drained(place, "stopping", said, exit_code=ExitCode.FAILED)
    unit = running[0]
    if unit.active == "deactivating":
        said = f"systemd goes on stopping {unit.name}"
        return Drained(place, "stopping", said, exit_code=ExitCode.FAILED)
    return Drained(place, "serving", f"{unit.name} still serves", exit_code=ExitCode.FAILED)
