"""`ddtreectl doctor`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from ddtreectl.apply.doctor import examine
from ddtreectl.apply.session import Session
from ddtreectl.cli import output
from ddtreectl.cli.context import Json, context
from ddtreectl.errors import DdtreectlError, ExitCode, UsageError
from ddtreectl.hosts.pool import on_each
from ddtreectl.plan.doctor import Check

MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "failed": "[bold red]✗[/]"}


def doctor(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Argument(metavar="HOST", help="A host.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All hosts of the inventory.")] = False,
    as_json: Json = False,
) -> int:
    """Check everything on HOST that services need, and change nothing.

    Access and sudo, Python and uv, systemd, disks, driver, GPUs, cordons, units, and every
    environment that is in use, looked at from within the sandbox of its service. The exit code is 1
    where a check has failed, 3 where some hosts do not answer and 4 where none does.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    if every:
        if host is not None:
            raise UsageError("`--all` and a host are one too many", hint="name the host alone")
        return _all({name: opened.session(inventory, name) for name in inventory.hosts}, as_json)
    name = opened.host_name(inventory, host)
    session = opened.session(inventory, name)
    with session.interrupts.watch():
        found = examine(session)
    failed = [check for check in found if check.state == "failed"]
    if as_json:
        output.document(_document(name, found))
    else:
        _show(name, found, len(failed))
    return int(ExitCode.FAILED if failed else ExitCode.DONE)


def _all(sessions: Mapping[str, Session], as_json: bool) -> int:
    """Examine hosts side by side, and show each as it is done."""
    codes: list[ExitCode] = []
    documents: dict[str, object] = {}
    for name, outcome in on_each(list(sessions), lambda name: examine(sessions[name])):
        if isinstance(outcome, DdtreectlError):
            codes.append(outcome.exit_code)
            documents[name] = {"host": name, "ready": False, "error": outcome.message}
            if not as_json:
                output.error(outcome, as_json=False)
            continue
        failed = sum(check.state == "failed" for check in outcome)
        codes.append(ExitCode.FAILED if failed else ExitCode.DONE)
        documents[name] = _document(name, outcome)
        if not as_json:
            _show(name, outcome, failed)
    if as_json:
        output.document({"hosts": [documents[name] for name in sessions]})
    answered = [code for code in codes if code is not ExitCode.UNREACHABLE]
    if len(answered) < len(codes):
        return int(ExitCode.PARTIAL if answered else ExitCode.UNREACHABLE)
    return int(max(codes, default=ExitCode.DONE))


def _document(host: str, found: list[Check]) -> dict[str, object]:
    ready = all(check.state != "failed" for check in found)
    return {"host": host, "ready": ready, "checks": [asdict(check) for check in found]}


def _show(host: str, found: list[Check], failed: int) -> None:
    console = output.stdout()
    width = max(len(check.area) for check in found)
    indent = " " * (width + 4)
    for check in found:
        console.print(f"{MARKS[check.state]} {check.area:{width}}  {escape(check.what)}")
        for line in check.cause.splitlines():
            console.print(f"{indent}[dim]{escape(line.strip())}[/]")
        if check.hint:
            console.print(f"{indent}[cyan]hint[/]: {escape(check.hint)}")
    warnings = sum(check.state == "warning" for check in found)
    console.print(f"{host}: {len(found)} checks, {failed} failed, {warnings} warnings")
