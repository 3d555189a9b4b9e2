"""The dead-man revert: the host returns to the last good generation if the operator is lost.

A timer on the host starts a script that was put there before the swap. Whoever finishes the swap
stops the timer. It needs systemd: the timer must outlive the operator's connection.
"""

from shlex import quote

from ddtreectl.apply.session import Session
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.plan.step import Candidate

MARGIN = 300
DEADLINE = 60.0


def timer(slot: str) -> str:
    """The name of the transient unit that reverts a slot."""
    return f"ddtree-revert-{slot}"


def script(place: Place, back: Candidate | None) -> str:
    """Shell script that stops what runs in the slot and starts `back`, if there is one."""
    layout, slot = place.layout, place.slot_name
    units = " ".join(quote(unit) for unit in slot_units(slot))
    lines = ["#!/bin/sh", f"systemctl stop {units}"]
    if back:
        staged = quote(f"{layout.generation(slot, back.number)}/{back.unit}")
        installed = quote(layout.unit(back.unit))
        lines += [
            f"cp {staged} {installed}.new && mv -T {installed}.new {installed}",
            "systemctl daemon-reload",
            f"systemctl reset-failed {quote(back.unit)} 2>/dev/null",
            f"systemctl start {quote(back.unit)} || exit 1",
            f"systemctl enable --quiet {quote(back.unit)}",
        ]
    return "\n".join([*lines, f"rm -f {quote(layout.swap(slot))}", ""])


def arm(session: Session, place: Place, candidate: Candidate, back: Candidate | None) -> None:
    """Start the timer; it goes off well after the last health check must have ended."""
    path = f"{place.layout.slot(place.slot_name)}/revert.sh"
    session.host.put(path, script(place, back).encode(), mode=0o755)
    seconds = 2 * candidate.service.start_timeout + candidate.service.stop_timeout + MARGIN
    disarm(session, place)
    name = timer(place.slot_name)
    armed = session.host.run(
        ["systemd-run", f"--on-active={seconds}", f"--unit={name}", "--collect", "/bin/sh", path],
        deadline=DEADLINE,
    )
    check(armed, "the dead-man revert cannot be armed")


def disarm(session: Session, place: Place) -> None:
    """Stop the timer; one that is not armed is no error."""
    name = timer(place.slot_name)
    session.host.run(
        ["sh", "-c", f"systemctl stop {name}.timer 2>/dev/null; true"], deadline=DEADLINE
    )
