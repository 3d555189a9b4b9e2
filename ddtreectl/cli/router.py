"""`ddtreectl router`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ddtreectl.apply.router import Router
from ddtreectl.apply.router_service import RouterService
from ddtreectl.apply.router_sync import Serving, Synced, served, sync
from ddtreectl.cli import output, router_table
from ddtreectl.cli.commands import exiting
from ddtreectl.cli.context import Context, DryRun, Json, LockWait, context
from ddtreectl.env.wheelhouse import Wheelhouse
from ddtreectl.errors import DdtreectlError, ExitCode, UsageError
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.workers import slot_id


def deploy(
    ctx: typer.Context,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            "--wheelhouse",
            metavar="DIR",
            help="A folder of smg's wheels here, for a host without a network.",
        ),
    ] = None,
    dry_run: DryRun = False,
    lock_wait: LockWait = 0,
    as_json: Json = False,
) -> int:
    """Install and start the router as the inventory has it, and put in what serves.

    Another version or other settings restart it: for about a second nobody listens on its port.
    Exit code 3: the router runs, and not everything that serves could be put in.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    router = _router(opened, inventory)
    named = wheelhouse or (Path(router.settings.wheelhouse) if router.settings.wheelhouse else None)
    wheels = Wheelhouse.open(named.expanduser()) if named else None
    with router.session.interrupts.watch():
        service = RouterService(router, wheels, lock_wait=lock_wait)
        steps = service.steps() if dry_run else service.deploy()
        synced = None if dry_run else sync(router, _serving(opened, inventory, router))
    if as_json:
        shown = [{"title": step.title, "reason": step.reason} for step in steps]
        document: dict[str, object] = {"applied": not dry_run and bool(steps), "steps": shown}
        output.document({**document, "workers": asdict(synced) if synced else None})
        return int(_code(synced))
    if dry_run:
        for number, step in enumerate(steps, 1):
            output.stdout().print(f"{number:3}. {step.title}  [dim]{escape(step.reason)}[/]")
    state = "runs" if steps and not dry_run else "would run" if steps else "runs already"
    where = f"{router.settings.host}, port {router.settings.port}"
    output.stdout().print(f"router: smg {router.settings.version} {state} on {where}")
    if synced is not None:
        _say_synced(synced)
    return int(_code(synced))


def status(ctx: typer.Context, as_json: Json = False) -> int:
    """Show the router and its workers.

    Exit code 0: it is up, and each worker that it is told to have gets requests; 1: not so; 4: its
    host does not answer.
    """
    opened = context(ctx)
    router = _router(opened, opened.inventory())
    facts = router.facts()
    if as_json:
        output.document(router_table.document(router, facts))
    else:
        output.stdout().print(router_table.table(router, facts))
    return int(router_table.exit_code(facts))


def stop(ctx: typer.Context, lock_wait: LockWait = 0, as_json: Json = False) -> int:
    """Stop the router, and keep it stopped until its next deploy. Requests in progress finish."""
    opened = context(ctx)
    router = _router(opened, opened.inventory())
    with router.session.interrupts.watch():
        ran = RouterService(router, lock_wait=lock_wait).stop()
    if as_json:
        output.document({"stopped": ran})
    else:
        output.stdout().print(f"router: {'stopped' if ran else 'it did not run'}")
    return int(ExitCode.DONE)


def sync_(ctx: typer.Context, as_json: Json = False) -> int:
    """Have the router know what serves: for what it could not be told at the time.

    Services that are good and ready are put in, others are taken out. Those of hosts that do not
    answer, slots in the middle of a swap, and services that listen where the router cannot reach
    them are left as they were; the exit code is 3 then.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    router = _router(opened, inventory)
    synced = sync(router, _serving(opened, inventory, router))
    if as_json:
        output.document(asdict(synced))
    else:
        _say_synced(synced)
    return int(ExitCode.DONE if synced.complete else ExitCode.PARTIAL)


def forget(
    ctx: typer.Context,
    slot: Annotated[str, typer.Argument(metavar="HOST/SLOT", help="The slot that was moved.")],
    as_json: Json = False,
) -> int:
    """Have no other slot stand for HOST/SLOT any more, so that it may serve again.

    What serves in the other slot goes on.
    """
    opened = context(ctx)
    router = _router(opened, opened.inventory())
    if slot not in router.workers:
        known = ", ".join(router.workers)
        raise UsageError(f"`{slot}` is no worker of the router", hint=f"there are: {known}")
    before = (router.facts().moved or {}).get(slot)
    router.forget(slot)
    if as_json:
        output.document({"slot": slot, "stood_for_it": before})
    elif before:
        output.stdout().print(f"{slot}: {before} stands for it no more")
    else:
        output.stdout().print(f"{slot}: no other slot stood for it")
    return int(ExitCode.DONE)


def _router(opened: Context, inventory: Inventory) -> Router:
    router = opened.router(inventory)
    if router is None:
        raise UsageError(
            "the inventory has no `router`",
            hint="add `router: {host: HOST, address: ADDRESS, port: PORT}` to it",
        )
    return router


def _code(synced: Synced | None) -> ExitCode:
    return ExitCode.DONE if synced is None or synced.complete else ExitCode.PARTIAL


def _serving(opened: Context, inventory: Inventory, router: Router) -> list[tuple[str, Serving]]:
    """What each worker serves, as its host has it."""
    hosts = [
        name
        for name, host in inventory.hosts.items()
        if any(slot_id(name, slot) in router.workers for slot in host.slots)
    ]

    def look(name: str) -> Mapping[str, Serving]:
        facts = opened.session(inventory, name).slots()
        entry = inventory.hosts[name]
        return {
            slot_id(name, slot): None  # whoever swaps it sees to it
            if facts.records.swap_of(slot)
            else served(worker, Place(name, entry, slot, settings), facts)
            for slot, settings in entry.slots.items()
            if (worker := router.workers.get(slot_id(name, slot)))
        }

    found: dict[str, Serving] = {}
    for name, outcome in on_each(hosts, look):
        if isinstance(outcome, DdtreectlError):
            output.progress(f"! {outcome.message}", name)
        else:
            found |= outcome
    return [(name, found.get(name)) for name in router.workers]


def _say_synced(synced: Synced) -> None:
    console = output.stdout()
    said = {
        "put in": synced.put_in,
        "taken out": synced.taken_out,
        "as before": synced.kept,
        "left as they were, for want of an answer or in a swap": synced.unknown,
        "moved elsewhere": synced.moved,
    }
    for what, names in said.items():
        if names:
            console.print(f"  {what}: {', '.join(names)}")
    for name, why in synced.out_of_reach.items():
        console.print(f"  out of reach: {name}: {escape(why)}")
        host, _, slot = name.partition("/")
        console.print(f"    hint: `ddtreectl deploy {host} --slot {slot} --mode …` starts it anew")


group = typer.Typer(
    help="Deploy, watch and stop what clients of a fleet speak to.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
for name, command in (
    ("deploy", deploy),
    ("status", status),
    ("stop", stop),
    ("sync", sync_),
    ("forget", forget),
):
    group.command(name)(exiting(command))
