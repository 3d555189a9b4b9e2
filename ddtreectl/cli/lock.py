"""`ddtreectl lock`."""

from typing import Annotated

import typer

from ddtreectl.apply.lock import HostLock, stale
from ddtreectl.apply.session import Session
from ddtreectl.cli import output
from ddtreectl.cli.commands import exiting
from ddtreectl.cli.context import Context, Json, Reason, context
from ddtreectl.errors import ExitCode
from ddtreectl.facts.records import LockOwner

Host = Annotated[
    str | None, typer.Argument(metavar="HOST", help="A host; may be left out if only one.")
]


def status(ctx: typer.Context, host: Host = None, as_json: Json = False) -> int:
    """Show who works on a host. Exit code 5: someone does; 0: nobody."""
    session, found = _look(context(ctx), host)
    working = found is not None and not stale(found, session.operator)
    if as_json:
        output.document({"host": session.host.name, **_document(found, working=working)})
    elif found is None:
        output.plain(f"{session.host.name}: no lock")
    else:
        state = "locked" if working else "a stale lock, which the next command takes over,"
        output.plain(f"{session.host.name}: {state} by {found}, renewed {found.age:.0f} s ago")
    return int(ExitCode.LOCKED if working else ExitCode.DONE)


def break_(
    ctx: typer.Context,
    reason: Reason,
    host: Host = None,
    as_json: Json = False,
) -> int:
    """Take the lock of a host from whoever holds it, and end what they do there.

    Their swap, if they were in one, is set right by the next deploy, rollback or stop, or by the
    host itself.
    """
    session, found = _look(context(ctx), host)
    name = session.host.name
    broken = False
    if found is not None:
        with session.interrupts.watch():
            lock = HostLock(session.host, session.layout, session.operator)
            broken = lock.broken(found)
            session.audit("lock-broken", previous=str(found), reason=reason)
    if as_json:
        output.document({"host": name, "broken": broken, "previous": str(found) if found else None})
    else:
        output.plain(f"{name}: broke the lock of {found}" if broken else f"{name}: no lock")
    return int(ExitCode.DONE)


def _look(opened: Context, host: str | None) -> tuple[Session, LockOwner | None]:
    inventory = opened.inventory()
    session = opened.session(inventory, opened.host_name(inventory, host))
    return session, session.certain("records").records.lock


def _document(found: LockOwner | None, *, working: bool) -> dict[str, object]:
    if found is None:
        return {"locked": False, "lock": None}
    fields = ("owner", "host", "pid", "since", "command", "age")
    return {"locked": working, "lock": {key: getattr(found, key) for key in fields}}


group = typer.Typer(
    help="Look at the lock of a host, or break it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
group.command("status")(exiting(status))
group.command("break")(exiting(break_))
