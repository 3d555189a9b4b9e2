"""`ddtreectl logs`."""

from typing import Annotated

import typer

from ddtreectl.cli import output
from ddtreectl.cli.context import Gpu, Json, Port, SlotName, context
from ddtreectl.errors import ExitCode, UsageError
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.select import find_place
from ddtreectl.plan.wish import current

DEADLINE = 60.0


def logs(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="A host; may be left out if only one.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=100_000, help="How many lines.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on printing what is written.")
    ] = False,
    slot: SlotName = None,
    gpu: Gpu = None,
    port: Port = None,
    as_json: Json = False,
) -> int:
    """Show the journal of the service of a slot."""
    if follow and as_json:
        raise UsageError("`--follow` has no end, so it has no JSON document")
    opened = context(ctx)
    inventory = opened.inventory()
    name = opened.host_name(inventory, host)
    place = find_place(inventory, name, slot=slot, gpu=gpu, port=port)
    session = opened.session(inventory, name)
    facts = session.gather()
    found = current(place, facts)
    if found is None:
        raise UsageError(f"nothing was ever deployed to `{place.slot_name}` of `{name}`")
    argv = session.supervisor.journal(found.unit, lines, follow=follow)
    if follow:
        for line in session.host.stream(argv):
            output.plain(line.removesuffix("\n"))
        return int(ExitCode.DONE)
    result = check(session.host.run(argv, deadline=DEADLINE), f"no journal of `{found.unit}`")
    if as_json:
        written = result.stdout.splitlines()
        output.document({"host": name, "unit": found.unit, "lines": written})
    else:
        output.plain(result.stdout.removesuffix("\n"))
    return int(ExitCode.DONE)
