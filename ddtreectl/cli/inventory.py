"""`ddtreectl inventory`."""

from pathlib import Path
from typing import Annotated

import typer

from ddtreectl.cli import output
from ddtreectl.cli.commands import exiting
from ddtreectl.cli.context import Json, context
from ddtreectl.errors import ExitCode
from ddtreectl.inventory.loader import load
from ddtreectl.inventory.model import Inventory


def check(
    ctx: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="The file; the global one if left out.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Check an inventory file; every mistake is shown with file:line:column."""
    where = path or context(ctx).path()
    inventory = load(where)
    slots = sum(len(host.slots) for host in inventory.hosts.values())
    if as_json:
        hosts = {
            name: {"connection": host.connection, "slots": list(host.slots)}
            for name, host in inventory.hosts.items()
        }
        output.document({"path": str(where), "valid": True, "hosts": hosts})
    else:
        output.stdout().print(f"{where}: {len(inventory.hosts)} hosts, {slots} slots, no mistakes")
    return int(ExitCode.DONE)


def show(ctx: typer.Context, as_json: Json = False) -> int:
    """List hosts, slots and what is protected."""
    where = context(ctx).path()
    inventory = load(where)
    if as_json:
        output.document({"path": str(where), **inventory.model_dump(mode="json")})
        return int(ExitCode.DONE)
    console = output.stdout()
    for name, host in inventory.hosts.items():
        console.print(f"{name} ({host.connection}{f' {host.address}' if host.address else ''})")
        for slot_name, slot in host.slots.items():
            gpus = f"GPU {', '.join(map(str, slot.gpus))}" if slot.gpus else "CPU"
            console.print(f"  {slot_name}: {gpus}, port {slot.port}")
        for kept in host.protected:
            gpus = f"GPU {', '.join(map(str, kept.gpus))}" if kept.gpus else "no GPU"
            console.print(f"  protected {kept.name}: {gpus}, port {kept.port or 'none'}")
    return int(ExitCode.DONE)


def schema(as_json: Json = False) -> int:
    """Print the JSON schema of an inventory file; it is JSON with and without `--json`."""
    del as_json
    output.document(Inventory.model_json_schema())
    return int(ExitCode.DONE)


group = typer.Typer(
    help="Look at the inventory.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
group.command("check")(exiting(check))
group.command("schema")(exiting(schema))
group.command("show")(exiting(show))
