"""The router of a fleet, as a table and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ddtreectl.apply.router import Router
from ddtreectl.errors import ExitCode
from ddtreectl.facts.router import RouterFacts
from ddtreectl.inventory.workers import slot_id
from ddtreectl.plan.routed import SYNC
from ddtreectl.plan.status import HostStatus

NONE = "-"
STYLES = {"up": "green", "ready": "green", "down": "bold red", "unreachable": "bold red"}


def exit_code(facts: RouterFacts) -> ExitCode:
    """What the state of a router means for a shell."""
    if facts.state == "unreachable":
        return ExitCode.UNREACHABLE
    ready = {worker.name for worker in facts.workers if worker.status == "ready"}
    fine = facts.state == "up" and ready >= set(facts.listed or {})
    return ExitCode.DONE if fine else ExitCode.FAILED


def document(router: Router, facts: RouterFacts) -> dict[str, object]:
    """The router as JSON."""
    return {
        "host": router.settings.host,
        "port": router.settings.port,
        "version": router.settings.version,
        "state": facts.state,
        "problem": facts.problem,
        "listed": facts.listed,
        "moved": facts.moved,
        "workers": [
            {**asdict(w), "moved": sorted(w.moved), "models": sorted(w.models)}
            for w in facts.workers
        ],
    }


def table(router: Router, facts: RouterFacts) -> RenderableType:
    """The router and its workers for a reader."""
    style = STYLES.get(facts.state, "yellow")
    where = f"{router.settings.host}, port {router.settings.port}"
    problem = f" ({escape(facts.problem)})" if facts.problem else ""
    head = f"router on {where}: [{style}]{facts.state}[/]{problem}"
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("WORKER", "URL", "STATUS"):
        shown.add_column(title, no_wrap=True)
    shown.add_column("LOAD", justify="right")
    shown.add_column("FOR", no_wrap=True)
    for row in _rows(router, facts):
        shown.add_row(*row)
    return Group(Text.from_markup(head), shown)


def _rows(router: Router, facts: RouterFacts) -> list[list[str]]:
    known = {worker.name: worker for worker in facts.workers}
    listed, moved = facts.listed or {}, facts.moved or {}
    rows = []
    for name in sorted({*router.workers, *known, *listed}):
        worker = known.get(name)
        url = worker.url if worker else listed.get(name) or router.workers[name].url
        if worker is not None:
            state = worker.status
        elif name in moved:
            state = f"moved to {moved[name]}"
        else:
            state = "listed" if name in listed else "out"
        load = NONE if worker is None or worker.load is None else str(worker.load)
        stands_for = ", ".join(sorted(worker.moved)) if worker else ""
        style = STYLES.get(state, "yellow")
        rows.append([name, url, f"[{style}]{escape(state)}[/]", load, stands_for or NONE])
    return rows


def remarks(router: Router, facts: RouterFacts, hosts: Sequence[HostStatus]) -> Iterator[str]:
    """What serves and gets no requests, and what serves beside the slot that it was moved to."""
    if facts.listed is None or facts.state == "absent":
        return
    known = {worker.name: worker.status for worker in facts.workers}
    for host in hosts:
        for service in host.services:
            name = slot_id(service.host, service.slot)
            listed = name in facts.listed
            if name in router.workers and not listed and service.health == "healthy":
                by = (facts.moved or {}).get(name)
                yield (
                    f"{name} serves beside {by}, which it was moved to"
                    if by
                    else (f"{name} serves, and the router has it not: {SYNC}")
                )
            reached = facts.state != "up" or known.get(name) == "ready"
            if listed and not reached and service.health == "healthy":
                yield (
                    f"{name} serves, and the router has no answer from {facts.listed[name]}: "
                    "if that stays, it listens elsewhere, and a deploy has it listen there"
                )
