"""`ddtreectl render`."""

from dataclasses import replace
from typing import Annotated

import typer

from ddtreectl.cli import output
from ddtreectl.cli.context import Gpu, HostName, Json, Port, SlotName, context, read_budget
from ddtreectl.errors import ExitCode
from ddtreectl.facts.gpu import unknown
from ddtreectl.inventory.select import find_place, service_for
from ddtreectl.inventory.service import Mode
from ddtreectl.units.render import render as render_unit


def render(
    ctx: typer.Context,
    host: HostName,
    mode: Annotated[Mode, typer.Option("--mode", help="How the service decodes.")],
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", metavar="N|auto", help="Nodes of the tree besides the root; `auto` chooses."
        ),
    ] = None,
    topk: Annotated[
        int | None, typer.Option("--topk", help="Candidates for each depth of the tree.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="A model folder.")] = None,
    drafter: Annotated[str | None, typer.Option("--drafter", help="A drafter folder.")] = None,
    slot: SlotName = None,
    gpu: Gpu = None,
    port: Port = None,
    generation: Annotated[
        int, typer.Option("--generation", min=1, help="The number to render it for.")
    ] = 1,
    environment: Annotated[
        str, typer.Option("--environment", help="The name of its environment.")
    ] = "ENVIRONMENT",
    as_json: Json = False,
) -> int:
    """Print the unit of a service, for a given number and environment. Asks no host.

    The UUIDs of GPUs, which only the host knows, and their device nodes are made up.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    place = find_place(inventory, host, slot=slot, gpu=gpu, port=port)
    service = service_for(
        inventory, place, mode, budget=read_budget(budget), topk=topk, model=model, drafter=drafter
    )
    unit = render_unit(
        layout=place.layout,
        slot=place.slot_name,
        service=service,
        generation=generation,
        environment=environment,
        gpus=[replace(unknown(i), uuid=f"UUID-OF-GPU-{i}", minor=i) for i in place.slot.gpus],
    )
    if as_json:
        output.document(
            {
                "unit": unit.name,
                "path": place.layout.unit(unit.name),
                "text": unit.text,
                "environment_file": unit.environment_file,
                "argv": list(unit.argv),
            }
        )
    else:
        typer.echo(unit.text, nl=False)
    return int(ExitCode.DONE)
