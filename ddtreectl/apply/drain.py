"""Empties cordoned slots: services are stopped gracefully, one after the other."""

from dataclasses import dataclass
from typing import Literal

from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError, ExitCode
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place

State = Literal["stopped", "empty", "failed", "stopping", "serving", "unknown"]
LEFT: frozenset[State] = frozenset({"stopping", "serving", "unknown"})
"""What an interrupted drain leaves."""


@dataclass(frozen=True)
class Drained:
    """What became of a slot.

    Attributes:
        place: the slot.
        state: `stopped`; `empty`, because nothing ran; `failed`, because it does not stop; and
            after an interruption `stopping` (systemd goes on with it), `serving` or `unknown`.
        said: what went wrong, or what goes on.
        hint: what to do about it.
        exit_code: of the failure.
    """

    place: Place
    state: State
    said: str = ""
    hint: str = ""
    exit_code: ExitCode = ExitCode.DONE


def drain(session: Session, place: Place) -> Drained:
    """Stop the service of a slot, and keep it stopped; for a caller that watches for signals."""
    try:
        outcome = Deployment(session, place).stop()
    except DdtreectlError as error:
        if isinstance(error.__cause__, InterruptedByOperatorError):
            return left(session, place)
        said = f"{error.message}\n{error.cause}".strip()
        return Drained(place, "failed", said, error.hint, error.exit_code)
    except InterruptedByOperatorError:
        return left(session, place)
    return Drained(place, "stopped" if outcome.applied else "empty")


def left(session: Session, place: Place) -> Drained:
    """What goes on in a slot whose drain was interrupted, or never begun."""
    try:
        facts = session.look()
    except DdtreectlError as error:
        return Drained(place, "unknown", error.message, error.hint, ExitCode.FAILED)
    running = [u for name in slot_units(place.slot_name) if (u := facts.unit(name)).running]
    if not running:
        said = "its service has ended, and is not marked as stopped on purpose"
        return Drained(place, "stopping", said, exit_code=ExitCode.FAILED)
    unit = running[0]
    if unit.active == "deactivating":
        said = f"systemd goes on stopping {unit.name}"
        return Drained(place, "stopping", said, exit_code=ExitCode.FAILED)
    return Drained(place, "serving", f"{unit.name} still serves", exit_code=ExitCode.FAILED)
