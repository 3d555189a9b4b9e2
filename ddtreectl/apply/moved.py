"""Fences a slot whose service serves elsewhere: it does not run, and does not start, any more.

Three things keep it down, each on its own: a marker that its units look at before they start, no
unit that starts at boot, and masks in place of the unit files. All of it can be done again.
"""

import json
from contextlib import suppress
from shlex import quote

from ddtreectl.apply import deadman, exchange, generations
from ddtreectl.apply.exchange import COMMAND_DEADLINE
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError, StepError
from ddtreectl.facts.moves import Move
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.units import guard


def fence(session: Session, place: Place, move: Move) -> None:
    """Have the slot serve no more. Its host is locked by the caller.

    What can be done without its processes is done first: a process that is stuck in the kernel
    does not end, and must not come back after the reboot that it needs.

    Raises:
        StepError: something of it still runs; the marker and the masks hold all the same.
    """
    layout, slot = session.layout, place.slot_name
    marker = json.dumps(move.now("fenced").to_json(), sort_keys=True)
    session.host.put(layout.stopped(slot), b"{}")
    session.host.put(layout.moved(slot), json.dumps(move.to_json(), sort_keys=True).encode())
    facts = session.certain("systemd", "units", "records")
    units = slot_units(slot)
    enabled = [name for name in units if facts.unit(name).enabled]
    if enabled:
        disabled = session.host.run(session.supervisor.disable(enabled), deadline=COMMAND_DEADLINE)
        check(disabled, f"the units of `{slot}` cannot be disabled")
    generations.remove(session, layout.arrived(slot))  # what came here has gone on
    if facts.systemd:
        deadman.disarm(session, place)
    if facts.records.swap_of(slot):
        generations.end_swap(session, slot)
    stuck: DdtreectlError | None = None
    try:
        exchange.stop(session, [u.name for u in facts.running_units(slot)])
        exchange.await_release(session, place, port_wanted=False)
    except StepError as error:
        stuck = error
    files = " ".join(quote(layout.unit(name)) for name in units)
    script = f"for f in {files}; do ln -sfnT /dev/null $f.new && mv -T $f.new $f || exit 1; done"
    masked = session.host.run(["sh", "-c", script], deadline=COMMAND_DEADLINE)
    check(masked, f"the units of `{slot}` cannot be masked")
    session.host.run(session.supervisor.reload(), deadline=COMMAND_DEADLINE)
    if stuck is not None:
        raise stuck
    session.host.put(layout.moved(slot), marker.encode())
    session.audit("moved", slot=slot, to=move.target, generation=move.generation)


def deliver(session: Session) -> list[Move]:
    """Fence what has moved while the host could not be reached; its lock is held by the caller.

    Returns what is fenced now. What cannot be is said: it is in nobody's way here.
    """
    waiting = [entry for entry in session.moves if entry.pending]
    done = []
    for entry in waiting:
        slot = session.entry.slots.get(entry.source_slot)
        if slot is None:
            continue
        place = Place(session.host.name, session.entry, entry.source_slot, slot)
        try:
            with session.report.step(f"fence {entry.source}, which has moved to {entry.target}"):
                fence(session, place, entry)
        except StepError as error:
            session.report.say(f"  ! {error.message} {error.cause}".rstrip())
            continue
        done.append(entry.now("fenced"))
    session.moves = tuple(entry for entry in session.moves if entry.now("fenced") not in done)
    for entry in done:
        if session.fenced:
            with suppress(DdtreectlError):  # it is fenced; the next command finds that out
                session.fenced(entry)
    return done


def unguard(session: Session, unit: str, unit_text: str) -> None:
    """Let a unit start although another slot stands for its own, until `guard_again` or a reboot.

    After a reboot in the middle of an undo the router is asked again, and what stands for the slot
    is what serves.
    """
    session.host.put(session.layout.unguarded(unit), guard.drop_in(unit_text).encode())
    reloaded = session.host.run(session.supervisor.reload(), deadline=COMMAND_DEADLINE)
    check(reloaded, f"systemd on `{session.host.name}` cannot read its units again")


def guard_again(session: Session, place: Place) -> None:
    """End that for every unit of a slot."""
    generations.remove(session, *map(session.layout.unguarded, slot_units(place.slot_name)))
    session.host.run(session.supervisor.reload(), deadline=COMMAND_DEADLINE)


def open_slot(session: Session, place: Place) -> None:
    """Let the slot serve again: without marker and masks, and still stopped."""
    layout, slot = session.layout, place.slot_name
    files = " ".join(quote(layout.unit(name)) for name in slot_units(slot))
    script = f"for f in {files}; do [ ! -L $f ] || rm -f -- $f || exit 1; done"
    opened = session.host.run(["sh", "-c", script], deadline=COMMAND_DEADLINE)
    check(opened, f"the masks of `{slot}` cannot be removed")
    generations.remove(session, layout.moved(slot))
    session.host.run(session.supervisor.reload(), deadline=COMMAND_DEADLINE)
    session.moves = tuple(entry for entry in session.moves if entry.source_slot != slot)
