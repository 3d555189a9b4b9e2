"""`ddtreectl status`."""

import time
from typing import Annotated

import typer

from ddtreectl.apply.lock import stale
from ddtreectl.cli import output
from ddtreectl.cli.context import Json, context
from ddtreectl.errors import DdtreectlError, ExitCode, UnreachableError
from ddtreectl.inventory.select import find_host
from ddtreectl.plan.status import HostStatus, host_status

FINE = {"healthy", "stopped", "starting", "draining"}


def status(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="[HOST]", help="A host; all of them if left out.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Show what runs on a host, or on all hosts of the inventory.

    Exit code 0: nothing is wrong; 1: a service is unhealthy or failed, or a swap was interrupted;
    3: some hosts are unreachable; 4: all are.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    if host:
        find_host(inventory, host)
    reached: list[HostStatus] = []
    unreachable: dict[str, str] = {}
    for name in [host] if host else list(inventory.hosts):
        try:
            session = opened.session(inventory, name)
            facts = session.gather()
        except UnreachableError as failure:
            unreachable[name] = failure.message
        except DdtreectlError as failure:
            unreachable[name] = f"{failure.message} {failure.cause}".strip()
        else:
            lock = facts.records.lock
            locked = lock is not None and not stale(lock, session.operator)
            reached.append(host_status(name, session.entry, facts, now=time.time(), locked=locked))
    if as_json:
        output.document(output.status_document(reached, unreachable))
    else:
        output.status(reached, unreachable)
    return int(_code(reached, unreachable))


def _code(reached: list[HostStatus], unreachable: dict[str, str]) -> ExitCode:
    if unreachable:
        return ExitCode.PARTIAL if reached else ExitCode.UNREACHABLE
    wrong = any(s.health not in FINE for host in reached for s in host.services)
    unfinished = any(host.interrupted for host in reached)
    return ExitCode.FAILED if wrong or unfinished else ExitCode.DONE
