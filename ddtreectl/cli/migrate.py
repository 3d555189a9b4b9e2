"""`ddtreectl migrate`."""

import sys
import time
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape

from ddtreectl.apply import migrate_back
from ddtreectl.apply.interrupts import InterruptedByOperatorError, Interrupts
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.apply.kept_moves import KeptMoves, KeptServices
from ddtreectl.apply.leaving import Wanted
from ddtreectl.apply.migrate import Migration, Moved
from ddtreectl.apply.move_records import REASON
from ddtreectl.apply.survey import Survey
from ddtreectl.cli import output
from ddtreectl.cli.context import Context, DryRun, Json, LockWait, context, read_budget
from ddtreectl.errors import ExitCode, StepError, UnreachableError, UsageError
from ddtreectl.facts.moves import Move
from ddtreectl.inventory.select import find_slots
from ddtreectl.inventory.service import Mode
from ddtreectl.plan.migration import MigrationPlan, SlotMove

LOOK = "look at every host"


def migrate(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE[:GPU]", help="What is left: a host, or a GPU of it.")
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET[:GPU]]", help="Where to; by default wherever it fits best."
        ),
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option("--mode", help="Where nobody knows it: how the service decodes.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="N|auto",
            help="Likewise: nodes of the tree besides the root; `auto` chooses.",
        ),
    ] = None,
    topk: Annotated[
        int | None, typer.Option("--topk", help="Likewise: candidates for each depth.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a migration; fence what could not be.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Bring services back to SOURCE, and stop the others.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    lock_wait: LockWait = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Move the services of SOURCE to other slots of the fleet, with mode, budget and top-k.

    Everything is provisioned and checked first; the source is left alone until the target has
    passed every check, and fenced then: stopped, disabled and masked, and marked so that its units
    do not start. A source out of reach is fenced at the next contact; until then the exit code is
    3, and status names the split.
    """
    if resume and undo:
        raise UsageError("`--resume` and `--undo` go in different directions")
    opened = context(ctx)
    began = time.monotonic()
    survey = _survey(opened, source, target, Wanted(mode, read_budget(budget), topk))
    interrupts = Interrupts(output.progress)
    for session in survey.sessions.values():
        session.interrupts = interrupts
    output.progress(LOOK)
    survey.look()
    if undo:
        return _undo(survey, interrupts, lock_wait, yes=yes, dry_run=dry_run, as_json=as_json)
    plan = survey.plan(resume=resume)
    planned = time.monotonic() - began
    if dry_run or (plan.refusals and not as_json) or plan.empty:
        _show(plan, as_json=as_json)
        left = ExitCode.PARTIAL if plan.stuck else ExitCode.DONE
        return int(ExitCode.FAILED if plan.refusals else left)
    if not as_json:
        _show(plan, as_json=False)
    some = f", without {', '.join(move.name for move in plan.stuck)}" if plan.stuck else ""
    _ask(f"migrate {source}{some}?", yes=yes)
    work = Migration(survey, plan, KeptCordons(opened.path()), lock_wait, output.progress)
    interrupted = ""
    with interrupts.watch():
        try:
            work.run()
        except InterruptedByOperatorError as signal:
            interrupted = signal.name
    return _done(work, planned, interrupted, as_json=as_json)


def _survey(opened: Context, source: str, target: str | None, wanted: Wanted) -> Survey:
    inventory = opened.inventory()
    sessions = {
        name: opened.session(inventory, name, partial(output.progress, host=name))
        for name in inventory.hosts
    }
    return Survey(
        inventory=inventory,
        sessions=sessions,
        source=find_slots(inventory, source),
        target=find_slots(inventory, target) if target else None,
        wanted=wanted,
        moves=KeptMoves(opened.path()),
        services=KeptServices(opened.path()),
    )


def _ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "nobody can be asked here", hint="`--yes` goes on without; `--dry-run` prints the plan"
        )
    typer.confirm(question, abort=True, err=True)


def _show(plan: MigrationPlan, *, as_json: bool) -> None:
    if as_json:
        output.document({"applied": False, "plan": plan_document(plan)})
        return
    console = output.stdout()
    if plan.verdict:
        console.print(f"[red]{plan.source}[/]: {escape(plan.verdict)}")
    for move in plan.moves:
        _show_move(move)
    for reason in plan.refusals or [r for move in plan.stuck for r in move.refusals]:
        console.print(f"[bold red]refused[/]: {escape(reason)}")
    for number, step in enumerate(plan.steps, 1):
        console.print(f"{number:3}. {escape(step.title)}  [dim]{escape(step.reason)}[/]")
    for note in plan.notes:
        console.print(f"[dim]note:[/] {escape(note)}")
    if plan.empty and not plan.refusals:
        console.print(f"{plan.source}: nothing to do")


def _show_move(move: SlotMove) -> None:
    console, service = output.stdout(), move.service
    if service is not None:
        what = f"mode {service.mode}, budget {service.budget}, top-k {service.topk}"
        console.print(
            f"{move.name}: {what}, model {escape(service.model)} [dim](known from "
            f"{escape(move.known_from)})[/]"
        )
    for entry in move.placement.judged if move.placement else ():
        chosen = move.target is not None and entry.prospect is move.target
        mark = "[green]→[/]" if chosen else "[dim]·[/]" if not entry.rejections else "[red]✗[/]"
        said = "; ".join(entry.rejections or entry.remarks)
        console.print(f"  {mark} {entry.prospect.name}: {escape(said)}")
    if move.downtime:
        console.print(f"  downtime: {escape(move.downtime)}")


def plan_document(plan: MigrationPlan) -> dict[str, object]:
    """A plan as JSON."""
    return {
        "source": plan.source,
        "verdict": plan.verdict or None,
        "moves": [
            {
                "source": move.name,
                "target": move.target.name
                if move.target
                else move.under_way.target
                if move.under_way
                else None,
                "service": move.service.model_dump(mode="json") if move.service else None,
                "known_from": move.known_from or None,
                "serves": move.serves,
                "state": move.state,
                "downtime": move.downtime or None,
                "refusals": list(move.refusals),
                "candidates": [
                    {
                        "slot": entry.prospect.name,
                        "rejections": list(entry.rejections),
                        "remarks": list(entry.remarks),
                    }
                    for entry in (move.placement.judged if move.placement else ())
                ],
            }
            for move in plan.moves
        ],
        "steps": [{"action": s.action, "title": s.title, "reason": s.reason} for s in plan.steps],
        "notes": list(plan.notes),
        "refusals": list(plan.refusals),
    }


def _done(work: Migration, planned: float, interrupted: str, *, as_json: bool) -> int:
    code = _code(list(work.results.values()), interrupted)
    if as_json:
        output.document(
            {
                "applied": True,
                "plan": plan_document(work.plan),
                "results": [
                    {
                        "source": name,
                        "target": result.move.target if result.move else None,
                        "serves": result.serves,
                        "fenced": result.fenced,
                        "error": result.error.message if result.error else None,
                        "cause": result.error.cause if result.error else None,
                        "hint": result.error.hint if result.error else None,
                    }
                    for name, result in work.results.items()
                ],
                "seconds": {"plan": planned, **work.seconds},
                "interrupted": interrupted or None,
                "exit_code": int(code),
            }
        )
        return int(code)
    console = output.stdout()
    for name, result in work.results.items():
        to = result.move.target if result.move else "?"
        if result.fenced:
            console.print(f"{name}: [green]serves in {to}[/], and is fenced")
        elif result.serves:
            console.print(f"{name}: [yellow]serves in {to}[/], and is not fenced yet")
        else:
            console.print(f"{name}: [bold red]has not moved[/]")
        if result.error:
            output.error(result.error, as_json=False)
    if interrupted:
        console.print(f"[yellow]interrupted by {interrupted}[/]")
    took = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in work.seconds.items())
    console.print(f"[dim]plan {planned:.1f} s, {took}[/]")
    if interrupted or code is not ExitCode.DONE:
        source = work.plan.source
        console.print(f"[cyan]hint[/]: `ddtreectl migrate {source} --resume` goes on")
    return int(code)


def _code(results: list[Moved], interrupted: str) -> ExitCode:
    if all(result.fenced and not result.error for result in results) and not interrupted:
        return ExitCode.DONE
    if any(result.serves for result in results):
        return ExitCode.PARTIAL
    codes = {result.error.exit_code for result in results if result.error}
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED


def _undo(
    survey: Survey,
    interrupts: Interrupts,
    lock_wait: int,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    noted = _undone(survey)
    told = [{"source": move.source, "target": move.target, "state": move.state} for move in noted]
    if not as_json:
        for move in noted:
            text = f"{move.target} goes on until {move.source} serves again and is checked"
            output.stdout().print(f"{move.source}: generation {move.generation} again; {text}")
    if not dry_run:
        _ask(f"bring {survey.source} back?", yes=yes)
        with interrupts.watch():
            migrate_back.undo(survey, noted, lock_wait, output.progress)
    if as_json:
        output.document({"applied": not dry_run, "undone": told})
    elif not dry_run:
        for move in noted:
            output.stdout().print(f"{move.source}: [green]serves again[/]; {move.target} stopped")
    return int(ExitCode.DONE)


def _undone(survey: Survey) -> list[Move]:
    """The moves that an undo brings back.

    Raises:
        UsageError: there are none.
        StepError: the source is not healthy.
        UnreachableError: a host that takes part cannot be asked.
    """
    source = survey.source.host_name
    found = [m for entry in survey.source.places if (m := survey.under_way(entry)) is not None]
    if not found:
        silent = ", ".join(survey.unreachable)
        hint = f"this cannot be asked: {silent}" if silent else ""
        raise UsageError(f"nothing has moved away from {survey.source}", hint=hint)
    for host in (source, *(move.target_host for move in found)):
        if host in survey.unreachable:
            there = (
                f"; `ddtreectl uncordon {survey.source}`, then `ddtreectl migrate {host} {source}`"
            )
            raise UnreachableError(
                f"`{host}` cannot be reached: {survey.unreachable[host]}",
                hint="an undo has to be sure of both hosts"
                + (f"{there}, brings it back without `{host}`" if host != source else ""),
            )
    cordons = survey.facts[source].records.cordons
    gpus = survey.facts[source].gpus
    indices = [index for entry in survey.source.places for index in entry.slot.gpus]
    for cordon in cordons:
        held = cordon.gpu is None or any(cordon.covers(index, gpus) for index in indices)
        if held and not (cordon.kept == "host" and cordon.reason.startswith(REASON)):
            raise StepError(
                f"{survey.source} cannot serve: {cordon}",
                hint=f"`ddtreectl uncordon {survey.source}` ends that",
            )
    if finding := survey.finding():
        raise StepError(
            f"{survey.source} cannot serve: {finding.reason}",
            hint=f"once that is repaired, `ddtreectl uncordon {survey.source}` settles it",
        )
    for move in found:
        migrate_back.is_reached(survey, move)
    return found
