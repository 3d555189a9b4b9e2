"""Prints: results to stdout, everything else to stderr."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ddtreectl.errors import DdtreectlError, UnreachableError
from ddtreectl.plan.status import HostStatus, ServiceStatus
from ddtreectl.plan.step import Plan

NONE = "-"

HEALTH_STYLE = {
    "healthy": "green",
    "starting": "yellow",
    "draining": "yellow",
    "stopped": "dim",
    "unhealthy": "bold red",
    "failed": "bold red",
}


def stdout() -> Console:
    """The console of results."""
    return _console(to_stderr=False)


def stderr() -> Console:
    """The console of progress and errors."""
    return _console(to_stderr=True)


def _console(*, to_stderr: bool) -> Console:
    """A console that wraps words at the width of a terminal, and nowhere in a file or pipe."""
    console = Console(stderr=to_stderr, highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


def progress(line: str) -> None:
    """Print a line of progress."""
    styles = {"✓": "green", "✗": "red", "!": "yellow", "…": "dim"}
    style = styles.get(line.strip()[:1], "")
    stderr().print(f"[{style}]{escape(line)}[/]" if style else escape(line))


def document(content: Mapping[str, object]) -> None:
    """Print the result of a command as JSON."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def error(failure: DdtreectlError, *, as_json: bool) -> None:
    """Print a failure: `error:`, its cause, what was seen, and `hint:`."""
    console = stderr()
    console.print(f"[bold red]error[/]: {escape(failure.message)}")
    if failure.cause:
        console.print(escape(_indented("cause: " + failure.cause)))
    if failure.evidence:
        console.print(escape(_indented("\n".join(["evidence:", *failure.evidence]))))
    if failure.hint:
        console.print(f"[bold cyan]hint[/]: {escape(failure.hint)}")
    if as_json:
        document(
            {
                "error": {
                    "message": failure.message,
                    "cause": failure.cause,
                    "hint": failure.hint,
                    "evidence": list(failure.evidence),
                    "exit_code": int(failure.exit_code),
                }
            }
        )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def plan(shown: Plan) -> None:
    """Print a plan: its steps with their reasons, how the unit changes, and notes."""
    console = stdout()
    where = f"`{shown.slot}` of `{shown.host}`"
    if shown.refusals:
        console.print(f"[bold red]refused[/]: {escape(where)} cannot take this now")
        for reason in shown.refusals:
            console.print(f"  • {escape(reason)}")
    if shown.empty:
        console.print(f"nothing to do for {escape(where)}")
    for number, step in enumerate(shown.steps, 1):
        console.print(f"{number:3}. {escape(step.title)}  [dim]{escape(step.reason)}[/]")
    if shown.unit_diff:
        console.print()
        for line in shown.unit_diff.splitlines():
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
            console.print(f"[{style}]{escape(line)}[/]")
        console.print()
    for note in shown.notes:
        console.print(f"[dim]note:[/] {escape(note)}")


def plan_document(shown: Plan) -> dict[str, object]:
    """A plan as JSON."""
    candidate = shown.candidate
    return {
        "host": shown.host,
        "slot": shown.slot,
        "steps": [
            {"action": s.action, "title": s.title, "reason": s.reason, "phase": s.phase}
            for s in shown.steps
        ],
        "generation": candidate.number if candidate else None,
        "service": candidate.service.model_dump(mode="json") if candidate else None,
        "environment": candidate.environment if candidate else None,
        "unit": candidate.unit if candidate else None,
        "back": shown.back,
        "refusals": list(shown.refusals),
        "notes": list(shown.notes),
        "unit_diff": shown.unit_diff,
    }


def status_document(
    hosts: list[HostStatus], failures: Mapping[str, DdtreectlError]
) -> dict[str, object]:
    """The state of hosts as JSON; `failures` has the hosts that could not be looked at."""
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
        }
        for name, failure in failures.items()
    ]
    return {
        "hosts": entries,
        "services": [asdict(service) for host in hosts for service in host.services],
    }


def status(hosts: list[HostStatus], failures: Mapping[str, DdtreectlError]) -> None:
    """Print the state of hosts as a table; `failures` has those that could not be looked at."""
    console = stdout()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("HOST", "SLOT", "MODE"):
        table.add_column(title, no_wrap=True)
    for title in ("BUDGET", "PORT"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("HEALTH", no_wrap=True)
    for title in ("GEN", "τ", "TOK/S", "UPTIME"):
        table.add_column(title, justify="right", no_wrap=True)
    for host in hosts:
        for service in host.services:
            table.add_row(*_row(service))
        for slot in host.empty_slots:
            table.add_row(host.host, slot, "[dim]empty[/]", *[NONE] * 7)
    for name, failure in failures.items():
        state = "unreachable" if isinstance(failure, UnreachableError) else "unknown"
        table.add_row(name, NONE, NONE, NONE, NONE, f"[bold red]{state}[/]", *[NONE] * 4)
    console.print(table)
    for failure in failures.values():
        console.print(f"[red]error[/]: {escape(failure.message)}")
        if failure.cause:
            console.print(escape(_indented(failure.cause)))
        if failure.hint:
            console.print(f"[cyan]hint[/]: {escape(failure.hint)}")
    for host in hosts:
        _remarks(console, host)


def _row(service: ServiceStatus) -> list[str]:
    style = HEALTH_STYLE[service.health]
    return [
        service.host,
        service.slot,
        service.mode or "?",
        _number(service.budget),
        str(service.port),
        f"[{style}]{service.health}[/]",
        str(service.generation),
        _number(service.acceptance_length, 2),
        _number(service.tokens_per_second, 1),
        uptime(service.uptime_seconds),
    ]


def _remarks(console: Console, host: HostStatus) -> None:
    for service in host.services:
        if service.problem:
            console.print(f"[red]{host.host}/{service.slot}[/]: {escape(service.problem)}")
    for text in host.interrupted:
        console.print(
            f"[yellow]{host.host}[/]: {escape(text)}, was interrupted; "
            f"`ddtreectl rollback {host.host}` sets it right"
        )
    if host.lock:
        console.print(f"[yellow]{host.host}[/]: locked by {escape(host.lock)}")
    if host.services and not host.restarts_services:
        console.print(
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
