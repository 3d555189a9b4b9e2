"""The state of hosts, as a table and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Self

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ddtreectl.cli.output import indented, stdout
from ddtreectl.errors import DdtreectlError, UnreachableError
from ddtreectl.facts.cordons import Cordon
from ddtreectl.plan.skew import skew
from ddtreectl.plan.status import HostStatus, ServiceStatus

NONE = "-"

HEALTH_STYLE = {
    "healthy": "green",
    "starting": "yellow",
    "draining": "yellow",
    "swapping": "yellow",
    "stopped": "dim",
    "moved": "dim",
    "unhealthy": "bold red",
    "failed": "bold red",
    "drained": "bold red",
}


Kept = Mapping[str, tuple[Cordon, ...]]


def document(
    hosts: Sequence[HostStatus], failures: Mapping[str, DdtreectlError], kept: Kept | None = None
) -> dict[str, object]:
    """The state of hosts as JSON.

    Args:
        hosts: those that were looked at.
        failures: the others.
        kept: the cordons that the operator keeps, by host.
    """
    entries: list[dict[str, object]] = []
    for host in hosts:
        entry = asdict(host)
        del entry["services"]
        entries.append({**entry, "reachable": True, "error": None})
    entries += [
        {
            "host": name,
            "reachable": not isinstance(failure, UnreachableError),
            "error": failure.message,
            "cause": failure.cause,
            "hint": failure.hint,
            "cordons": [asdict(cordon) for cordon in (kept or {}).get(name, ())],
        }
        for name, failure in failures.items()
    ]
    return {
        "hosts": entries,
        "services": [asdict(service) for host in hosts for service in host.services],
        "skew": list(skew(hosts)),
    }


def table(
    hosts: Sequence[HostStatus], failures: Mapping[str, DdtreectlError], kept: Kept | None = None
) -> RenderableType:
    """The state of hosts for a reader; see `document`."""
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("HOST", "SLOT", "MODE"):
        shown.add_column(title, no_wrap=True)
    for title in ("BUDGET", "PORT"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("HEALTH", no_wrap=True)
    for title in ("GEN", "τ", "TOK/S", "RUN", "WAIT", "UPTIME"):
        shown.add_column(title, justify="right", no_wrap=True)
    for host in hosts:
        for service in host.services:
            shown.add_row(*_row(service))
        for slot in host.empty_slots:
            shown.add_row(host.host, slot, "[dim]empty[/]", *[NONE] * 9)
    for name, failure in failures.items():
        state = "unreachable" if isinstance(failure, UnreachableError) else "unknown"
        shown.add_row(name, NONE, NONE, NONE, NONE, f"[bold red]{state}[/]", *[NONE] * 6)
    lines = [*_failed(failures, kept or {}), *(line for host in hosts for line in _remarks(host))]
    lines += [f"[yellow]skew[/]: {escape(text)}" for text in skew(hosts)]
    return Group(shown, *(Text.from_markup(line) for line in lines))


class Screen:
    """Shows tables one after the other: in place on a terminal, below each other elsewhere.

    Args:
        plain: show nothing.
    """

    def __init__(self, *, plain: bool) -> None:
        from rich.live import Live

        self._console = stdout()
        self._stack = ExitStack()
        self._live: Live | None = None
        if self._console.is_terminal and not plain:
            self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._stack.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, content: RenderableType) -> None:
        """Show `content` in place of what was shown before."""
        if self._live is not None:
            self._live.update(content, refresh=True)
        else:
            self._console.print(content)


def _row(service: ServiceStatus) -> list[str]:
    style = HEALTH_STYLE[service.health]
    return [
        service.host,
        service.slot,
        service.mode or "?",
        NONE if service.budget is None else str(service.budget),
        str(service.port),
        f"[{style}]{service.health}[/]",
        str(service.generation),
        _number(service.acceptance_length, 2),
        _number(service.tokens_per_second, 1),
        _number(service.running),
        _number(service.queued),
        uptime(service.uptime_seconds),
    ]


def _failed(failures: Mapping[str, DdtreectlError], kept: Kept) -> Iterator[str]:
    for name, failure in failures.items():
        yield f"[red]error[/]: {escape(failure.message)}"
        if failure.cause:
            yield escape(indented(failure.cause))
        if failure.hint:
            yield f"[cyan]hint[/]: {escape(failure.hint)}"
        for cordon in kept.get(name, ()):
            yield f"[yellow]{name}[/]: {escape(str(cordon))}"


def _remarks(host: HostStatus) -> Iterator[str]:
    for service in host.services:
        if service.problem:
            yield f"[red]{host.host}/{service.slot}[/]: {escape(service.problem)}"
        if service.health == "moved" and service.moved_to:
            yield f"[dim]{host.host}/{service.slot}: moved to {service.moved_to}[/]"
    for remark in host.health.remarks:
        style = "red" if remark.verdict.takes_no_service else "yellow"
        yield f"[{style}]{host.host}[/]: {escape(str(remark))}"
        if remark.hint:
            yield f"  [cyan]hint[/]: {escape(remark.hint)}"
    for cordon in host.health.cordons:
        yield f"[yellow]{host.host}[/]: {escape(str(cordon))}"
    for text, command in zip(host.interrupted, host.rollbacks, strict=True):
        yield (
            f"[yellow]{host.host}[/]: {escape(text)}, was interrupted; "
            f"`{escape(command)}` sets it right"
        )
    for move in host.moves:
        yield f"[red]{host.host}/{move.slot}[/]: {escape(move.text)}"
        if move.hint:
            yield f"  [cyan]hint[/]: {escape(move.hint)}"
    if host.lock:
        yield f"[yellow]{host.host}[/]: locked by {escape(host.lock)}"
    if host.services and not host.restarts_services:
        yield (
            f"[dim]{host.host}: no systemd runs here; units run through {host.supervisor}, "
            "and nothing restarts a service that ends[/]"
        )


def _number(value: float | None, digits: int = 0) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def uptime(seconds: float | None) -> str:
    """A duration as a person says it, in its two largest units."""
    if seconds is None:
        return NONE
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {whole % 60}s" if minutes else f"{whole}s"
