"""`ddtreectl provision`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError
from rich.markup import escape

from ddtreectl.apply.provision import Provisioning, ProvisionPlan
from ddtreectl.apply.takeover import Takeover, TakeoverPlan
from ddtreectl.cli import output
from ddtreectl.cli.context import DryRun, HostName, Json, LockWait, context
from ddtreectl.errors import ExitCode, UsageError
from ddtreectl.inventory.environment import CudaName, EnvironmentSettings
from ddtreectl.inventory.select import find_host


def provision(
    ctx: typer.Context,
    host: HostName,
    backend: Annotated[
        Literal["engine", "sglang"], typer.Option("--backend", help="What is to be served from it.")
    ] = "engine",
    torch: Annotated[
        str | None, typer.Option("--torch", metavar="VERSION", help="The version of torch.")
    ] = None,
    cuda: Annotated[
        CudaName | None,
        typer.Option("--cuda", help="The CUDA build of torch; `auto` goes by driver and GPUs."),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            "--wheelhouse",
            metavar="DIR",
            help="A folder of wheels here, for a host without a network.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="HOST", help="Take over the environment of another host as it is."
        ),
    ] = None,
    lock_wait: LockWait = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Build an environment on HOST that fits its driver, GPUs and Python, and verify it there.

    With `--from`, it is copied from another host, if everything in it fits this one. Whatever is
    left out is as in the inventory. Deploys use what was provisioned last.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    asked = {"torch": torch, "cuda": cuda}
    changes = {key: value for key, value in asked.items() if value is not None}
    if wheelhouse is not None:
        changes["wheelhouse"] = str(wheelhouse.expanduser().resolve())
    try:
        wished = EnvironmentSettings.model_validate(changes)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        text = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"`--{first['loc'][0]}`: {text}") from None
    settings = find_host(inventory, host).environment.changed_by(wished)
    session = opened.session(inventory, host)
    if source is not None:
        if wheelhouse is not None:
            raise UsageError("`--from` and `--wheelhouse` are two ways to one environment: use one")
        if source == host:
            raise UsageError(f"`{host}` cannot take over its own environment")
        other = opened.session(inventory, source)
        with session.interrupts.watch():
            takeover = Takeover(session, other, backend, settings, inventory)
            taken = takeover.plan() if dry_run else takeover.take(lock_wait=lock_wait)
        _show_takeover(taken, dry_run=dry_run, as_json=as_json)
        return int(ExitCode.FAILED if taken.refusals else ExitCode.DONE)
    with session.interrupts.watch():
        provisioning = Provisioning(session, inventory, backend, settings)
        plan = provisioning.plan() if dry_run else provisioning.provision(lock_wait=lock_wait)
    _show(plan, applied=not dry_run and not plan.empty, dry_run=dry_run, as_json=as_json)
    return int(ExitCode.FAILED if plan.refusals else ExitCode.DONE)


def _show(plan: ProvisionPlan, *, applied: bool, dry_run: bool, as_json: bool) -> None:
    if as_json:
        output.document({"applied": applied, "plan": asdict(plan)})
        return
    console = output.stdout()
    if plan.refusals:
        console.print(f"[bold red]refused[/]: {escape(plan.host)} cannot be provisioned now")
        for reason in plan.refusals:
            console.print(f"  • {escape(reason)}")
    if dry_run:
        for number, step in enumerate(plan.steps, 1):
            console.print(f"{number:3}. {escape(step.title)}  [dim]{escape(step.reason)}[/]")
    what = f"torch {plan.torch} for {plan.build}" if plan.torch else plan.build
    state = "is ready" if applied else "is there already" if plan.empty else "would be built"
    console.print(f"{plan.host}: environment {plan.environment} {state}, {what} ({plan.reason})")


def _show_takeover(plan: TakeoverPlan, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        output.document({"applied": not dry_run and not plan.done, "plan": asdict(plan)})
        return
    console = output.stdout()
    if plan.refusals:
        console.print(
            f"[bold red]refused[/]: the environment of {escape(plan.taken_from)} does not fit "
            f"{escape(plan.host)}"
        )
        for reason in plan.refusals:
            console.print(f"  • {escape(reason)}")
        return
    state = "is there already" if plan.done else "would be copied" if dry_run else "is ready"
    console.print(
        f"{plan.host}: environment {plan.environment} {state}, torch {plan.torch} for "
        f"{plan.build}, taken over from {escape(plan.taken_from)}"
    )
