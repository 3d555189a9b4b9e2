"""`ddtreectl doctor`."""

from dataclasses import asdict

import typer
from rich.markup import escape

from ddtreectl.apply.doctor import examine
from ddtreectl.cli import output
from ddtreectl.cli.context import HostName, Json, context
from ddtreectl.errors import ExitCode
from ddtreectl.plan.doctor import Check

MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "failed": "[bold red]✗[/]"}


def doctor(ctx: typer.Context, host: HostName, as_json: Json = False) -> int:
    """Check everything on HOST that services need, and change nothing.

    Access and sudo, Python and uv, systemd, disks, driver, GPUs, units, and every environment that
    is in use, looked at from within the sandbox of its service. The exit code is 1 where a check
    has failed.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    session = opened.session(inventory, host)
    with session.interrupts.watch():
        found = examine(session)
    failed = [check for check in found if check.state == "failed"]
    if as_json:
        checks = [asdict(check) for check in found]
        output.document({"host": host, "ready": not failed, "checks": checks})
    else:
        _show(host, found, len(failed))
    return int(ExitCode.FAILED if failed else ExitCode.DONE)


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
