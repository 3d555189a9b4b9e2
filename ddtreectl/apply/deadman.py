"""The dead-man revert: the host returns to the last good generation if the operator is lost.

A timer on the host starts a script that was put there before the swap. Whoever finishes the swap
stops the timer. It needs systemd: the timer must outlive the operator's connection.
"""

import json
from shlex import quote

from ddtreectl.apply.session import Session
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.plan.step import Candidate

MARGIN = 900
"""Seconds beyond the start deadlines: for the stop before them and the smoke test after them."""

DEADLINE = 60.0


def timer(slot: str) -> str:
    """The name of the transient unit that reverts a slot."""
    return f"ddtree-revert-{slot}"


def script(place: Place, failed: int | None, back: Candidate | None) -> str:
    """Shell script that stops what runs in the slot and starts `back`, if there is one.

    It marks generation `failed`, if there is one, as what it is.
    """
    layout, slot = place.layout, place.slot_name
    units = " ".join(quote(unit) for unit in slot_units(slot))
    lines = ["#!/bin/sh", f"systemctl stop {units}"]
    if failed is not None:
        state = quote(f"{layout.generation(slot, failed)}/state.json")
        content = quote(json.dumps({"status": "failed", "reason": "the operator was lost"}))
        lines.append(f"printf %s {content} >{state}.new && mv -T {state}.new {state}")
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


def arm(
    session: Session,
    place: Place,
    service: ServiceSpec,
    *,
    failed: int | None,
    back: Candidate | None,
) -> None:
    """Start the timer; it goes off well after the last health check of `service` must have ended.

    Args:
        session: the operator at work.
        place: the slot.
        service: what is being started.
        failed: the generation to mark failed, if the timer goes off.
        back: the generation to start then.
    """
    path = f"{place.layout.slot(place.slot_name)}/revert.sh"
    session.host.put(path, script(place, failed, back).encode(), mode=0o755)
    seconds = 2 * service.start_timeout + service.stop_timeout + MARGIN
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
