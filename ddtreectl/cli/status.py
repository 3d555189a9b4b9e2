"""`ddtreectl status`."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from ddtreectl.apply.generating import with_generations
from ddtreectl.apply.lock import holder
from ddtreectl.apply.router import Router, unreachable
from ddtreectl.apply.session import SERVICES, Session
from ddtreectl.apply.watch import Watch
from ddtreectl.cli import output, status_table
from ddtreectl.cli.context import Json, context
from ddtreectl.cli.status_view import View
from ddtreectl.errors import DdtreectlError, ExitCode, UsageError
from ddtreectl.facts.host import STATUS, HostFacts
from ddtreectl.facts.router import RouterFacts
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.select import find_host
from ddtreectl.plan.status import HostStatus, host_status, moved_away
from ddtreectl.plan.wish import seen

PATIENCE = 15.0
"""Seconds, on top of the interval, that a watched host may be silent."""

ROUTER = ""
"""What the router is called among the hosts of a watch: no host is."""


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
    router = opened.router(inventory) if host is None else None
    if watch:
        return _watch(sessions, kept, router, interval, count, as_json=as_json)

    def look(name: str) -> HostStatus | RouterFacts:
        if name == ROUTER and router:
            return router.facts()
        return _look(sessions[name], generate=generate)

    places = [*([ROUTER] if router else []), *names]
    told = dict(on_each(places, look))
    view = _view({place: told[place] for place in places}, kept, router)
    if as_json:
        output.document(view.document())
    else:
        output.stdout().print(view.table())
    return int(view.exit_code())


def _look(session: Session, *, generate: bool) -> HostStatus:
    facts = session.certain(*STATUS, needed=SERVICES, times=2)
    found = state_of(session, facts)
    return with_generations(session, found, list(facts.records.generations)) if generate else found


def state_of(session: Session, facts: HostFacts) -> HostStatus:
    """The state of a host, from what its probe has told.

    Raises:
        StepError: it has not told in time what serves.
    """
    if late := session.late(facts, SERVICES):
        raise late
    session.remember(seen(session.host.name, session.entry, facts))
    locked = holder(facts.records, session.operator) is not None
    found = host_status(session.host.name, session.entry, facts, now=time.time(), locked=locked)
    return moved_away(found, {move.source: move.target for move in session.moves if move.pending})


def _watch(
    sessions: Mapping[str, Session],
    kept: status_table.Kept,
    router: Router | None,
    interval: float,
    count: int | None,
    *,
    as_json: bool,
) -> int:
    def look(name: str) -> Iterator[HostStatus | RouterFacts]:
        if name == ROUTER and router:
            yield from _follow(router, interval)
        rate = Rate()
        for facts in sessions[name].watch(STATUS, interval):
            yield rate.applied(state_of(sessions[name], facts))

    names = [*sessions, *([ROUTER] if router else [])]
    code = ExitCode.DONE
    try:
        with status_table.Screen(plain=as_json) as screen:
            for number, told in enumerate(Watch(names, look, interval + PATIENCE).rounds(), 1):
                view = _view(told, kept, router)
                code = view.exit_code()
                if as_json:
                    output.line(view.document())
                else:
                    screen.show(view.table())
                if number == count:
                    break
    except KeyboardInterrupt:
        pass  # the usual end of a watch
    return int(code)


def _follow(router: Router, interval: float) -> Iterator[RouterFacts]:
    """Look at the router again and again."""
    while True:
        yield router.facts()
        time.sleep(interval)


def _view(
    told: Mapping[str, HostStatus | RouterFacts | DdtreectlError],
    kept: status_table.Kept,
    router: Router | None,
) -> View:
    """One round of a watch."""
    hosts: dict[str, HostStatus | DdtreectlError] = {}
    routed: RouterFacts | None = None
    for name, found in told.items():
        if isinstance(found, RouterFacts):
            routed = found
        elif name != ROUTER:
            hosts[name] = found
        elif isinstance(found, DdtreectlError):
            routed = unreachable(found)
    return View.of(hosts, kept, router, routed)


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
