"""`ddtreectl drain`."""

from collections.abc import Sequence

import typer
from rich.markup import escape

from ddtreectl.apply import drain as draining
from ddtreectl.apply.drain import LEFT, Drained
from ddtreectl.apply.interrupts import handled
from ddtreectl.apply.on_targets import Opened, on_targets
from ddtreectl.cli import output
from ddtreectl.cli.context import Json, LockWait, Reason, context
from ddtreectl.cli.cordon import (
    Targets,
    combined,
    cordon_one,
    cordoned_document,
    failed_document,
    open_targets,
    parted,
    say_cordoned,
)
from ddtreectl.errors import DdtreectlError, ExitCode
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.select import Place

STYLES = {
    "stopped": "green",
    "empty": "dim",
    "protected": "yellow",
    "stopping": "yellow",
}


def drain(
    ctx: typer.Context,
    targets: Targets,
    reason: Reason = "drained",
    lock_wait: LockWait = 0,
    as_json: Json = False,
) -> int:
    """Cordon hosts or GPUs, all of them first, and stop their services gracefully.

    A slot that is protected is stopped only where its GPU is named; what is not ours is never
    stopped. Ctrl-C ends the waiting, and says what goes on: cordons stay, and what systemd has
    begun to stop it stops. Exit code 3: some slots could not be emptied, or reached; 4: none could
    be reached.
    """
    entries, kept = open_targets(context(ctx), targets)
    asked: list[str] = []

    def stop(name: str) -> None:
        asked.append(name)
        for entry in entries:
            entry.session.interrupts.ask_to_stop(name)

    with handled(stop):
        cordoned, failures = parted(
            on_targets(entries, lambda entry: cordon_one(entry, reason, kept))
        )
        if not as_json:
            for entry in cordoned:
                say_cordoned(entry)
        unreachable = {entry.target.host_name: entry.unreachable for entry in cordoned}
        failed = {target.host_name for target, _ in failures}
        reached = [
            entry
            for entry in entries
            if entry.target.host_name not in failed and not unreachable[entry.target.host_name]
        ]
        results = _drained(reached, asked, lock_wait)
    gone = [entry.target for entry in entries if unreachable.get(entry.target.host_name)]
    results += [
        Drained(
            place,
            "unreachable",
            unreachable[place.host_name],
            "the same command again, once it answers",
            ExitCode.UNREACHABLE,
        )
        for place, _ in draining.affected(gone)
    ]
    if as_json:
        output.document(
            {
                "cordoned": [cordoned_document(entry) for entry in cordoned],
                "failed": failed_document(failures),
                "slots": [_document(result) for result in results],
            }
        )
    else:
        _say(results)
        for _, failure in failures:
            output.error(failure, as_json=False)
    codes = [*(r.exit_code for r in results), *(failure.exit_code for _, failure in failures)]
    return int(combined(codes or [ExitCode.DONE]))


def _drained(entries: Sequence[Opened], asked: Sequence[str], lock_wait: int) -> list[Drained]:
    """Drain the slots of targets, many hosts at a time; once it is `asked` to stop, only look."""
    sessions = {entry.target.host_name: entry.session for entry in entries}
    wanted = list(draining.affected([entry.target for entry in entries]))
    places = {
        name: [place for place, allowed in wanted if allowed and place.host_name == name]
        for name in sessions
    }

    def of_host(name: str) -> list[Drained]:
        session = sessions[name]
        return [
            draining.left(session, place) if asked else draining.drain(session, place, lock_wait)
            for place in places[name]
        ]

    found: dict[tuple[str, str], Drained] = {}
    for name, outcome in on_each(list(sessions), of_host, deadline=None):
        if isinstance(outcome, DdtreectlError):
            raise outcome
        found |= {(name, result.place.slot_name): result for result in outcome}
    return [
        found[place.host_name, place.slot_name] if allowed else draining.protected(place)
        for place, allowed in wanted
    ]


def _document(result: Drained) -> dict[str, object]:
    return {
        "host": result.place.host_name,
        "slot": result.place.slot_name,
        "state": result.state,
        "said": result.said or None,
    }


def _say(results: list[Drained]) -> None:
    console = output.stdout()
    for result in results:
        where, style = _where(result.place), STYLES.get(result.state, "bold red")
        text = f": {result.said}" if result.said else ""
        console.print(f"{where}: [{style}]{result.state}[/]{escape(text)}")
        if result.hint:
            console.print(f"  [cyan]hint[/]: {escape(result.hint)}")
    if any(result.state in LEFT for result in results):
        console.print(
            "interrupted: the cordons stay; the same command again goes on with the drain"
        )


def _where(place: Place) -> str:
    return f"{place.host_name}/{place.slot_name}"
