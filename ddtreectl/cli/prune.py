"""`ddtreectl prune`."""

from typing import Annotated

import typer

from ddtreectl.apply import prune as pruning
from ddtreectl.cli import output
from ddtreectl.cli.context import DryRun, Json, LockWait, context
from ddtreectl.errors import ExitCode
from ddtreectl.plan.prune import Superfluous


def prune(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="A host; may be left out if only one.")
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", min=1, max=1000, metavar="N", help="Good generations to keep.")
    ] = 3,
    lock_wait: LockWait = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Remove old generations of a host, and environments that none of the others uses.

    What serves, what a failed deploy would return to, and what an unfinished swap needs is never
    removed.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    name = opened.host_name(inventory, host)
    session = opened.session(inventory, name)
    with session.interrupts.watch():
        found = (
            pruning.look(session, keep)
            if dry_run
            else pruning.prune(session, keep, lock_wait=lock_wait)
        )
    if as_json:
        output.document(
            {
                "host": name,
                "applied": not dry_run and not found.empty,
                "generations": {slot: list(numbers) for slot, numbers in found.generations.items()},
                "environments": list(found.environments),
                "units": list(found.units),
                "kept": {slot: dict(numbers) for slot, numbers in found.kept.items()},
            }
        )
    else:
        _show(name, found, "would remove" if dry_run else "removed")
    return int(ExitCode.DONE)


def _show(name: str, found: Superfluous, verb: str) -> None:
    for slot, numbers in found.generations.items():
        kept = ", ".join(f"{n} ({why})" for n, why in sorted(found.kept[slot].items()))
        gone = ", ".join(map(str, numbers)) or "none"
        output.plain(f"{name}/{slot}: {verb} generations: {gone}; kept: {kept or 'none'}")
    output.plain(f"{name}: {verb} environments: {', '.join(found.environments) or 'none'}")
