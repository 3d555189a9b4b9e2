"""`ddtreectl stop`."""

from typing import Annotated

import typer

from ddtreectl.apply.deploy import Deployment
from ddtreectl.cli import output
from ddtreectl.cli.context import Gpu, Json, LockWait, Port, SlotName, context
from ddtreectl.errors import ExitCode
from ddtreectl.inventory.select import find_place


def stop(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="A host; may be left out if only one.")
    ] = None,
    slot: SlotName = None,
    gpu: Gpu = None,
    port: Port = None,
    lock_wait: LockWait = 0,
    as_json: Json = False,
) -> int:
    """Stop the service of a slot; it stays stopped until the next deploy or rollback."""
    opened = context(ctx)
    inventory = opened.inventory()
    name = opened.host_name(inventory, host)
    place = find_place(inventory, name, slot=slot, gpu=gpu, port=port)
    session = opened.session(inventory, name)
    with session.interrupts.watch():
        outcome = Deployment(session, place, lock_wait=lock_wait).stop()
    if as_json:
        output.document({"applied": outcome.applied, "plan": output.plan_document(outcome.plan)})
    else:
        text = "stopped" if outcome.applied else "nothing runs in the slot"
        output.stdout().print(f"{name}/{place.slot_name}: {text}")
    return int(ExitCode.DONE)
