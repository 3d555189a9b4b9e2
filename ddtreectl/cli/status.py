"""`ddtreectl status`."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from ddtreectl.apply.generating import with_generations
from ddtreectl.apply.lock import holder
from ddtreectl.apply.session import Session
from ddtreectl.apply.watch import Watch
from ddtreectl.cli import output, router_table, status_table
from ddtreectl.cli.context import Json, context
from ddtreectl.errors import DdtreectlError, ExitCode, UsageError
from ddtreectl.facts.host import STATUS, HostFacts
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.select import find_host
from ddtreectl.plan.status import HostStatus, exit_code, host_status
from ddtreectl.plan.wish import seen

Seen = Mapping[str, HostStatus | DdtreectlError]

PATIENCE = 15.0
"""Seconds, on top of the interval, that a watched host may be silent."""


def status(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="A host; all of them if left out.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, over the same connections.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="End after so many looks.")
    ] = None,
    generate: Annotated[
        bool,
        typer.Option("--generate", help="Have each service generate a token as well; slow."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Show what runs on a host, or on all hosts of the inventory.

    Exit code 0: nothing is wrong; 1: a service is unhealthy or failed, its unit is not the one that
    was deployed, a swap was interrupted, a GPU or its driver needs somebody to act, or the router
    is not up or does not have what serves; 3: some hosts are unreachable; 4: all are.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    if host:
        find_host(inventory, host)
    names = [host] if host else list(inventory.hosts)
    sessions = {name: opened.session(inventory, name) for name in names}
    if watch and generate:
        raise UsageError("`--generate` asks once, and `--watch` again and again")
    kept = {name: session.cordons for name, session in sessions.items()}
    if watch:
        return _watch(sessions, interval, count, as_json=as_json)
    router = opened.router(inventory) if host is None else None
    with ThreadPoolExecutor(1) as beside:
        routed = beside.submit(router.facts) if router else None
        outcomes = dict(on_each(names, lambda name: _look(sessions[name], generate=generate)))
    seen = {name: outcomes[name] for name in names}
    code = exit_code(*_parted(seen))
    shown = status_table.table(*_parted(seen), kept)
    document = status_table.document(*_parted(seen), kept)
    if router and routed:
        facts = routed.result()
        remarks = list(router_table.remarks(router, facts, _parted(seen)[0]))
        marked = (Text.from_markup(f"[yellow]router[/]: {escape(text)}") for text in remarks)
        shown = Group(shown, router_table.table(router, facts), *marked)
        document["router"] = {**router_table.document(router, facts), "remarks": remarks}
        if code is ExitCode.DONE and (remarks or router_table.exit_code(facts) is not code):
            code = ExitCode.FAILED
    if as_json:
        output.document(document)
    else:
        output.stdout().print(shown)
    return int(code)


def _look(session: Session, *, generate: bool) -> HostStatus:
    facts = session.gather(only=STATUS)
    found = state_of(session, facts)
    return with_generations(session, found, list(facts.records.generations)) if generate else found


def state_of(session: Session, facts: HostFacts) -> HostStatus:
    """The state of a host, from what its probe has told."""
    session.remember(seen(session.host.name, session.entry, facts))
    locked = holder(facts.records, session.operator) is not None
    return host_status(session.host.name, session.entry, facts, now=time.time(), locked=locked)


def _parted(seen: Seen) -> tuple[list[HostStatus], dict[str, DdtreectlError]]:
    reached = [found for found in seen.values() if isinstance(found, HostStatus)]
    return reached, {name: e for name, e in seen.items() if isinstance(e, DdtreectlError)}


def _watch(
    sessions: Mapping[str, Session], interval: float, count: int | None, *, as_json: bool
) -> int:
    def look(name: str) -> Iterator[HostStatus]:
        rate = Rate()
        for facts in sessions[name].watch(STATUS, interval):
            yield rate.applied(state_of(sessions[name], facts))

    kept = {name: session.cordons for name, session in sessions.items()}
    rounds = Watch(list(sessions), look, interval + PATIENCE).rounds()
    code = ExitCode.DONE
    try:
        with status_table.Screen(plain=as_json) as screen:
            for number, seen in enumerate(rounds, 1):
                code = exit_code(*_parted(seen))
                if as_json:
                    output.line(status_table.document(*_parted(seen), kept))
                else:
                    screen.show(status_table.table(*_parted(seen), kept))
                if number == count:
                    break
    except KeyboardInterrupt:
        pass  # the usual end of a watch
    return int(code)


@dataclass
class Rate:
    """Decoding speed of a host's services between two looks, instead of since their start."""

    at: float = 0.0
    tokens: Mapping[tuple[str, int | None], float] | None = None

    def applied(self, host: HostStatus) -> HostStatus:
        """The status with the speed since the last look."""
        now, before, since = time.monotonic(), self.tokens or {}, self.at
        told = {(s.slot, s.pid): s.tokens for s in host.services if s.tokens is not None}
        self.at, self.tokens = now, told
        services = tuple(
            replace(s, tokens_per_second=(told[key] - before[key]) / (now - since))
            if (key := (s.slot, s.pid)) in told and key in before
            else s
            for s in host.services
        )
        return replace(host, services=services)
