"""`ddtreectl rollback`."""

from typing import Annotated

import typer

from ddtreectl.apply.deploy import Deployment
from ddtreectl.cli import one_slot
from ddtreectl.cli.context import DryRun, Gpu, Json, LockWait, Port, SlotName, context
from ddtreectl.inventory.select import find_place


def rollback(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="A host; may be left out if only one.")
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="N", help="The generation to go back to.")
    ] = None,
    slot: SlotName = None,
    gpu: Gpu = None,
    port: Port = None,
    lock_wait: LockWait = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Go back to the generation that was good before the one that serves, or to generation N."""
    opened = context(ctx)
    inventory = opened.inventory()
    name = opened.host_name(inventory, host)
    place = find_place(inventory, name, slot=slot, gpu=gpu, port=port)
    session = opened.session(inventory, name)
    with session.interrupts.watch():
        deployment = Deployment(session, place, lock_wait=lock_wait)
        if dry_run:
            return one_slot.show(deployment.plan_rollback(to), as_json=as_json)
        outcome = deployment.rollback(to)
    return one_slot.done(outcome, "serves again", as_json=as_json)
