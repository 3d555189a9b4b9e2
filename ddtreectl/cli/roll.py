"""Deploys to several hosts: begins, resumes, prints the summary."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

from rich.markup import escape
from rich.table import Table

from ddtreectl.apply import roll_journal
from ddtreectl.apply.deploy import Deployment, Outcome
from ddtreectl.apply.interrupts import handled
from ddtreectl.apply.operator import current
from ddtreectl.apply.roll import Result, Roll, Rules, Target, exit_code
from ddtreectl.apply.roll_journal import Request, RollJournal
from ddtreectl.apply.standby import Standby
from ddtreectl.cli import output
from ddtreectl.cli.context import Context
from ddtreectl.cli.services import service_of
from ddtreectl.errors import DdtreectlError, ExitCode, UsageError
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.select import Place, find_place
from ddtreectl.plan.step import Plan

STYLE = {
    Result.DEPLOYED: "green",
    Result.UNCHANGED: "green",
    Result.WAITING: "dim",
    Result.ROLLED_BACK: "yellow",
}


def begin(
    opened: Context,
    inventory: Inventory,
    places: Sequence[Place],
    request: Request,
    rules: Rules,
    *,
    lock_wait: int,
    as_json: bool,
) -> int:
    """Deploy to each place, as the rules have it."""
    targets = [Target(place.host_name, place.slot_name) for place in places]
    journal = RollJournal.new(opened.path(), request, rules, targets, current())
    return _carry_out(opened, inventory, journal, lock_wait=lock_wait, as_json=as_json)


def resume(
    opened: Context,
    inventory: Inventory,
    name: str,
    *,
    lock_wait: int,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Deploy to those targets of a roll that are not as they were to be, or print their plans."""
    journal = roll_journal.find(name, opened.path())
    if journal.inventory != str(opened.path().resolve()):
        raise UsageError(
            f"the roll `{name}` is over hosts of another inventory",
            hint=f"`--inventory {journal.inventory}`",
        )
    if journal.inventory_sha256 != roll_journal.fingerprint(opened.path()):
        output.progress(
            f"! {journal.inventory} has changed since the roll began: the hosts that are left get "
            "what it says now"
        )
    for host, target in journal.targets.items():
        if not target.result.good:
            journal.targets[host] = replace(target, result=Result.WAITING, message="")
    if dry_run:
        places = list(_places(inventory, journal).values())
        return plans(opened, inventory, places, journal.request, journal.rules, as_json=as_json)
    journal.halted = ""
    return _carry_out(opened, inventory, journal, lock_wait=lock_wait, as_json=as_json)


def plans(
    opened: Context,
    inventory: Inventory,
    places: Sequence[Place],
    request: Request,
    rules: Rules,
    *,
    as_json: bool,
) -> int:
    """Print what a roll would do on each host, and which of them not at the same time."""
    by_host = {place.host_name: place for place in places}

    def plan(host: str) -> Plan:
        session = opened.session(inventory, host, partial(output.progress, host=host))
        service = service_of(inventory, by_host[host], request)
        deployment = Deployment(session, by_host[host])
        return deployment.plan(service, force=request.force, new_gpu=request.new_gpu)

    found = dict(on_each(list(by_host), plan))
    outcomes = {host: found[host] for host in by_host}
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, DdtreectlError)]
    refused = [o for o in outcomes.values() if isinstance(o, Plan) and o.refusals]
    standby = _standby(opened, inventory, by_host)
    limits = standby.limits(rules.parallel) if standby else ()
    if as_json:
        output.document(
            {
                "applied": False,
                "limits": [asdict(limit) for limit in limits],
                "plans": [
                    {"host": host, "error": outcome.message}
                    if isinstance(outcome, DdtreectlError)
                    else output.plan_document(outcome)
                    for host, outcome in outcomes.items()
                ],
            }
        )
    else:
        for outcome in outcomes.values():
            if isinstance(outcome, DdtreectlError):
                output.error(outcome, as_json=False)
            else:
                output.plan(outcome)
        for limit in limits:
            output.note(str(limit))
    if not failures and not refused:
        return int(ExitCode.DONE)
    if len(failures) + len(refused) < len(outcomes):
        return int(ExitCode.PARTIAL)
    codes = {ExitCode.FAILED for _ in refused} | {failure.exit_code for failure in failures}
    return int(codes.pop() if len(codes) == 1 else ExitCode.FAILED)


def _carry_out(
    opened: Context, inventory: Inventory, journal: RollJournal, *, lock_wait: int, as_json: bool
) -> int:
    request = journal.request
    places = _places(inventory, journal)
    services = {host: service_of(inventory, place, request) for host, place in places.items()}
    sessions = {
        host: opened.session(inventory, host, partial(output.progress, host=host))
        for host in places
    }

    def work(host: str) -> Outcome:
        deployment = Deployment(sessions[host], places[host], lock_wait=lock_wait)
        try:
            return deployment.deploy(services[host], force=request.force, new_gpu=request.new_gpu)
        except DdtreectlError as error:
            output.error(error, as_json=False, host=host)
            raise

    def record(target: Target) -> None:
        try:
            journal.record(target)
        except DdtreectlError as error:  # what is in progress must not be left alone for that
            output.progress(f"! {error.message}: {error.cause}")

    def stop(host: str, signal: str) -> None:
        sessions[host].interrupts.ask_to_stop(signal)

    standby = _standby(opened, inventory, places)
    roll = Roll(
        list(journal.targets.values()),
        journal.rules,
        work=work,
        stop=stop,
        record=record,
        gate=standby.room if standby else None,
    )
    output.progress(f"roll {journal.name}: {_described(journal)}")
    for limit in standby.limits(journal.rules.parallel) if standby else ():
        output.progress(f"  {limit}")
    with handled(roll.halt):
        roll.run()
    journal.halted = roll.halted
    targets = list(roll.targets.values())
    record(targets[0])
    code = exit_code(targets)
    if as_json:
        output.document(
            {
                "roll": journal.name,
                "journal": str(journal.path),
                "halted": roll.halted,
                "targets": [asdict(target) for target in targets],
                "exit_code": int(code),
            }
        )
    else:
        _summary(journal, targets)
    return int(code)


def _standby(opened: Context, inventory: Inventory, places: Mapping[str, Place]) -> Standby | None:
    """What keeps the workers of a router serving; None where none of the slots is behind one."""
    router = opened.router(inventory)
    if router is None:
        return None
    found = {host: worker.name for host, p in places.items() if (worker := router.worker(p))}
    return Standby(found, router.facts) if found else None


def _places(inventory: Inventory, journal: RollJournal) -> dict[str, Place]:
    """The slots that are still to be deployed to, by host."""
    left = [target for target in journal.targets.values() if not target.result.good]
    return {target.host: find_place(inventory, target.host, slot=target.slot) for target in left}


def _described(journal: RollJournal) -> str:
    rules, left = journal.rules, [t for t in journal.targets.values() if not t.result.good]
    return (
        f"{journal.request.mode} to {len(left)} hosts, {rules.canary} canary, "
        f"{rules.parallel} at a time, {rules.max_failures} may fail"
    )


def _summary(journal: RollJournal, targets: Sequence[Target]) -> None:
    console = output.stdout()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("HOST", "SLOT", "RESULT"):
        table.add_column(title, no_wrap=True)
    for title in ("GEN", "TIME"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("WHY")
    for target in targets:
        style = STYLE.get(target.result, "bold red")
        table.add_row(
            target.host,
            target.slot,
            f"[{style}]{target.result}[/]",
            str(target.generation or "-"),
            f"{target.seconds:.0f}s" if target.result.ended else "-",
            escape(target.message),
        )
    console.print(table)
    if journal.halted:
        console.print(f"[yellow]halted[/]: {escape(journal.halted)}")
    if not all(target.result.good for target in targets):
        console.print(
            f"[cyan]hint[/]: `ddtreectl deploy --resume {journal.name}` deploys to those that are "
            "not as they were to be"
        )
