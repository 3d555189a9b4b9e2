"""`ddtreectl audit`."""

from typing import Annotated

import typer

from ddtreectl.apply import audit as log
from ddtreectl.cli import output
from ddtreectl.cli.context import Json, context
from ddtreectl.errors import ExitCode


def audit(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="A host; may be left out if only one.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=100_000, help="How many entries.")
    ] = 50,
    as_json: Json = False,
) -> int:
    """Show who has changed what on a host: deploys, reverts, broken locks, what was pruned."""
    opened = context(ctx)
    inventory = opened.inventory()
    name = opened.host_name(inventory, host)
    entries = log.read(opened.session(inventory, name), lines)
    if as_json:
        output.document({"host": name, "entries": entries})
        return int(ExitCode.DONE)
    for entry in entries:
        at, operator, event = (str(entry.get(key) or "?") for key in log.HEAD)
        output.plain(f"{at[:19]} {operator} {event}: {log.sentence(entry)}".rstrip(": "))
    if not entries:
        output.plain(f"nothing was ever done on {name}")
    return int(ExitCode.DONE)
