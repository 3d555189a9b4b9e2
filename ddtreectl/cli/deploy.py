"""`ddtreectl deploy`."""

from typing import Annotated

import typer

from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.roll import Rules
from ddtreectl.apply.roll_journal import Request
from ddtreectl.cli import one_slot, roll
from ddtreectl.cli.context import DryRun, Gpu, Json, LockWait, Port, SlotName, context, read_budget
from ddtreectl.cli.services import service_of
from ddtreectl.errors import UsageError
from ddtreectl.inventory.select import find_place
from ddtreectl.inventory.service import Mode

WITH_RESUME = frozenset({"--resume", "--lock-wait", "--dry-run", "--json"})
"""What may be said of a roll that goes on."""


def deploy(
    ctx: typer.Context,
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="HOST", help="Hosts of the inventory.")
    ] = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="How the service decodes.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", metavar="N|auto", help="Nodes of the tree besides the root; `auto` chooses."
        ),
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
    new_gpu: Annotated[
        bool, typer.Option("--new-gpu", help="The slot's card was exchanged: bind to the new one.")
    ] = False,
    canary: Annotated[
        int,
        typer.Option("--canary", min=0, metavar="N", help="Hosts that must be good before others."),
    ] = 1,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=64, metavar="N", help="Hosts at a time.")
    ] = 4,
    max_failures: Annotated[
        int,
        typer.Option("--max-failures", min=0, metavar="K", help="More of them end the roll."),
    ] = 0,
    skip_unreachable: Annotated[
        bool, typer.Option("--skip-unreachable", help="An unreachable host is no failure.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="ROLL", help="Finish a roll: `last`, or the name that it was given."
        ),
    ] = None,
    lock_wait: LockWait = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Bring a service into a slot of each HOST, in place of the one that runs there.

    Everything that can fail is checked before the old service stops. If the new one is not healthy,
    the last good generation comes back and the exit code is 6.

    Of several hosts the first `--canary` must be good before the others are begun. A host that
    fails, or is not reached, counts; after more than `--max-failures` no other is begun, and those
    in progress finish. Exit code 3: some hosts serve what was asked for, and some do not;
    `--resume last` deploys to these. Of the workers of a router no more are worked on at a time
    than leave one that serves the same model.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    if resume is not None:
        if others := _given(ctx) - WITH_RESUME:
            raise UsageError(
                "`--resume` goes on with the hosts, the service and the rules of its roll",
                hint=f"leave out: {', '.join(sorted(others))}",
            )
        return roll.resume(
            opened, inventory, resume, lock_wait=lock_wait, dry_run=dry_run, as_json=as_json
        )
    if not hosts or mode is None:
        raise UsageError("a deploy names a host and a `--mode`", hint="`ddtreectl deploy --help`")
    request = Request(
        mode=mode,
        budget=read_budget(budget),
        topk=topk,
        model=model,
        drafter=drafter,
        force=force,
        new_gpu=new_gpu,
    )
    if len(set(hosts)) != len(hosts):
        raise UsageError("a host is named twice")
    places = [find_place(inventory, host, slot=slot, gpu=gpu, port=port) for host in hosts]
    services = [service_of(inventory, place, request) for place in places]
    if len(places) > 1:
        rules = Rules(canary, parallel, max_failures, skip_unreachable)
        if dry_run:
            return roll.plans(opened, inventory, places, request, rules, as_json=as_json)
        return roll.begin(
            opened, inventory, places, request, rules, lock_wait=lock_wait, as_json=as_json
        )
    session = opened.session(inventory, hosts[0])
    with session.interrupts.watch():
        deployment = Deployment(session, places[0], lock_wait=lock_wait)
        if dry_run:
            plan = deployment.plan(services[0], force=force, new_gpu=new_gpu)
            return one_slot.show(plan, as_json=as_json)
        outcome = deployment.deploy(services[0], force=force, new_gpu=new_gpu)
    return one_slot.done(outcome, "serves", as_json=as_json)


def _given(ctx: typer.Context) -> set[str]:
    """The options and arguments that the command line names."""
    given = set()
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            given.add(parameter.opts[0] if parameter.opts[0].startswith("-") else "HOST")
    return given
