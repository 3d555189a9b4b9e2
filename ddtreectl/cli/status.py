"""`ddtreectl status`."""

import time
from collections.abc import Mapping
from typing import Annotated

import typer

from ddtreectl.apply.lock import stale
from ddtreectl.cli import output
from ddtreectl.cli.context import Json, context
from ddtreectl.errors import DdtreectlError, ExitCode
from ddtreectl.facts.host import STATUS
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.select import find_host
from ddtreectl.plan.status import HostStatus, host_status

FINE = {"healthy", "stopped", "starting", "draining"}


def status(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="A host; all of them if left out.")
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

    def look(name: str) -> HostStatus:
        session = opened.session(inventory, name)
        facts = session.gather(only=STATUS)
        lock = facts.records.lock
        locked = lock is not None and not stale(lock, session.operator)
        return host_status(name, session.entry, facts, now=time.time(), locked=locked)

    names = [host] if host else list(inventory.hosts)
    outcomes = dict(on_each(names, look))
    seen = {name: outcomes[name] for name in names}
    reached = [found for found in seen.values() if isinstance(found, HostStatus)]
    failures = {name: e for name, e in seen.items() if isinstance(e, DdtreectlError)}
    if as_json:
        output.document(output.status_document(reached, failures))
    else:
        output.status(reached, failures)
    return int(_code(reached, failures))


def _code(reached: list[HostStatus], failures: Mapping[str, DdtreectlError]) -> ExitCode:
    if failures and reached:
        return ExitCode.PARTIAL
    if failures:
        codes = {failure.exit_code for failure in failures.values()}
        return codes.pop() if len(codes) == 1 else ExitCode.UNREACHABLE
    wrong = any(s.health not in FINE for host in reached for s in host.services)
    unfinished = any(host.interrupted for host in reached)
    return ExitCode.FAILED if wrong or unfinished else ExitCode.DONE
