"""`ddtreectl deploy` and `ddtreectl rollback`."""

from typing import Annotated

import typer

from ddtreectl.apply.deploy import Deployment, Outcome
from ddtreectl.cli import output
from ddtreectl.cli.context import Gpu, HostName, Json, Port, SlotName, context
from ddtreectl.errors import ExitCode
from ddtreectl.inventory.select import find_place, service_for
from ddtreectl.inventory.service import Mode
from ddtreectl.plan.step import Plan

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]


def deploy(
    ctx: typer.Context,
    host: HostName,
    mode: Annotated[Mode, typer.Option("--mode", help="How the service decodes.")],
    budget: Annotated[
        int | None, typer.Option("--budget", help="Nodes of the tree besides the root.")
    ] = None,
    topk: Annotated[
        int | None, typer.Option("--topk", help="Candidates for each depth of the tree.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="`bundled`, or a model folder on the host.")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option("--drafter", help="`bundled`, or a drafter folder on the host.")
    ] = None,
    slot: SlotName = None,
    gpu: Gpu = None,
    port: Port = None,
    force: Annotated[
        bool, typer.Option("--force", help="Swap even if the slot serves the same already.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Bring a service into a slot of HOST, in place of the one that runs there.

    Everything that can fail is checked before the old service stops. If the new one is not healthy,
    the last good generation comes back and the exit code is 6.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    place = find_place(inventory, host, slot=slot, gpu=gpu, port=port)
    service = service_for(
        inventory, place, mode, budget=budget, topk=topk, model=model, drafter=drafter
    )
    session = opened.session(inventory, host)
    with session.interrupts.watch():
        deployment = Deployment(session, place)
        if dry_run:
            return _show(deployment.plan(service, force=force), as_json=as_json)
        outcome = deployment.deploy(service, force=force)
    return _done(outcome, "serves", as_json=as_json)


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
        deployment = Deployment(session, place)
        if dry_run:
            return _show(deployment.plan_rollback(to), as_json=as_json)
        outcome = deployment.rollback(to)
    return _done(outcome, "serves again", as_json=as_json)


def _show(plan: Plan, *, as_json: bool) -> int:
    if as_json:
        output.document({"applied": False, "plan": output.plan_document(plan)})
    else:
        output.plan(plan)
    return int(ExitCode.FAILED if plan.refusals else ExitCode.DONE)


def _done(outcome: Outcome, verb: str, *, as_json: bool) -> int:
    plan = outcome.plan
    if as_json:
        output.document(
            {
                "applied": outcome.applied,
                "recovered": outcome.recovered,
                "plan": output.plan_document(plan),
            }
        )
        return int(ExitCode.DONE)
    console = output.stdout()
    for note in () if outcome.applied else plan.notes:
        console.print(note)
    if plan.candidate:
        service = plan.candidate.service
        console.print(
            f"{plan.host}/{plan.slot}: generation {plan.candidate.number} {verb}, mode "
            f"{service.mode}, budget {service.budget}, port {service.port}"
            if outcome.applied or outcome.recovered is not None
            else f"{plan.host}/{plan.slot}: nothing to do"
        )
    elif outcome.recovered is not None:
        console.print(f"{plan.host}/{plan.slot}: set right; nothing serves")
    return int(ExitCode.DONE)
