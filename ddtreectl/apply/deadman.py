"""The dead-man revert: the host returns to the last good generation if the operator is lost.

A timer on the host starts a script that was put there before the swap. The operator winds it up
again while it works (see `apply.lock`), so it goes off soon after the host has last heard of them,
however long a model takes to load; and whoever finishes the swap takes it away. Its units are on
disk, so that a host that reboots in the middle of a swap returns as well.
"""

import json
from hashlib import sha256
from shlex import quote

from ddtreectl.apply.lock import GUARD, RENEW_EVERY
from ddtreectl.apply.session import Session
from ddtreectl.hosts.fence import end_commands
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.layout import Layout, slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.plan.step import Candidate
from ddtreectl.units.escape import exec_line

DEADLINE = 60.0
BY = "the host itself"


def timer(slot: str) -> str:
    """The name, without suffix, of the units that revert a slot."""
    return f"ddtree-revert-{slot}"


def script(place: Place, failed: int | None, back: Candidate | None, token: str) -> str:
    """Shell script that stops what runs in the slot and starts `back`, if there is one.

    It takes the lock from the operator who was lost, so that one who was only cut off goes no
    further, and ends the commands that still run under it: a `systemctl stop` that hangs must not
    go on once the old service is back. Until it is done it holds the lock itself and renews it, so
    that nobody comes between, however long a model takes to load. It marks generation `failed`, if
    there is one, as that.
    """
    layout, slot = place.layout, place.slot_name
    units = " ".join(quote(unit) for unit in slot_units(slot))
    event = {"event": "reverted", "slot": slot, "generation": back.number if back else None}
    own = sha256(token.encode()).hexdigest()[:16]  # nothing that has the operator's token in it
    holder = {"owner": BY, "host": place.host_name, "pid": 0, "ticks": 0, "boot": ""}
    holder |= {"since": "%s", "command": f"revert {slot}", "token": own}
    lock = quote(layout.lock)
    noted = json.dumps({"at": "%s", "operator": BY, **event}) + "\\n"
    lines = [
        "#!/bin/sh",
        f"trap 'kill $renewing 2>/dev/null; grep -qsF -e {own} {lock} && rm -f {lock}' EXIT",
        "now=$(date -u +%FT%T.%6N+00:00)",
        f"exec 9>>{quote(layout.root)}/{GUARD} && flock -w 10 9",
        f"rm -f {lock}",
        f'printf {quote(json.dumps(holder))} "$now" >{lock}.new && mv -T {lock}.new {lock}',
        "exec 9>&-",
        f"while sleep {RENEW_EVERY:g}; do",
        f"grep -qsF -e {own} {lock} && touch -c {lock} || exit",
        "done &",
        "renewing=$!",
        end_commands(token),
        f'printf {quote(noted)} "$now" >>{quote(layout.audit)}',
        f"systemctl stop {units}",
    ]
    if failed is not None:
        state = quote(f"{layout.generation(slot, failed)}/state.json")
        content = json.dumps({"status": "failed", "reason": "the operator was lost"})
        lines.append(f"printf %s {quote(content)} >{state}.new && mv -T {state}.new {state}")
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
    return "\n".join([*lines, f"rm -f {quote(layout.swap(slot))}", removal(layout, slot), ""])


def removal(layout: Layout, slot: str) -> str:
    """Shell text that takes the revert away; one that is not armed is no error."""
    name = timer(slot)
    files = " ".join(quote(layout.unit(f"{name}.{kind}")) for kind in ("timer", "service"))
    return (
        f"if [ -e {quote(layout.unit(f'{name}.timer'))} ]; then "
        f"systemctl disable --quiet --now {name}.timer; rm -f {files}; systemctl daemon-reload; fi"
    )


def units(place: Place, path: str) -> dict[str, str]:
    """The unit files that run the script at `path`, by name."""
    name = timer(place.slot_name)
    description = f"Description=Return {place.slot_name} to its last good generation"
    return {
        f"{name}.service": f"[Unit]\n{description}\n\n[Service]\nType=oneshot\n"
        f"ExecStart={exec_line(['/bin/sh', path])}\n",
        f"{name}.timer": f"[Unit]\n{description}, unless its operator is heard of\n\n"
        f"[Timer]\nOnActiveSec={place.host.revert_after}\nAccuracySec=1\n\n"
        "[Install]\nWantedBy=timers.target\n",
    }


def arm(
    session: Session, place: Place, *, failed: int | None, back: Candidate | None, token: str
) -> None:
    """Start the timer; the lock of the host winds it up from then on.

    Args:
        session: the operator at work.
        place: the slot.
        failed: the generation to mark failed, if the timer goes off.
        back: the generation to start then.
        token: of the lock that the operator holds.
    """
    path = f"{place.layout.slot(place.slot_name)}/revert.sh"
    session.host.put(path, script(place, failed, back, token).encode(), mode=0o755)
    for name, text in units(place, path).items():
        session.host.put(place.layout.unit(name), text.encode())
    name = timer(place.slot_name)
    start = (
        f"systemctl daemon-reload && systemctl enable --quiet {name}.timer && "
        f"systemctl restart {name}.timer"
    )
    armed = session.host.run(["sh", "-c", start], deadline=DEADLINE)
    check(armed, "the dead-man revert cannot be armed")


def disarm(session: Session, place: Place) -> None:
    """Take the timer away; one that is not armed is no error."""
    text = removal(place.layout, place.slot_name)
    session.host.run(["sh", "-c", f"{text}; true"], deadline=DEADLINE)
