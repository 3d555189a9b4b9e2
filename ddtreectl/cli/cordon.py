"""`ddtreectl cordon`, `ddtreectl uncordon` and `ddtreectl drain`."""

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.markup import escape

from ddtreectl.apply import cordons
from ddtreectl.apply import drain as draining
from ddtreectl.apply.cordons import Cordoned, Uncordoned
from ddtreectl.apply.drain import LEFT, Drained
from ddtreectl.apply.interrupts import InterruptedByOperatorError, Interrupts
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.apply.session import Session
from ddtreectl.cli import output
from ddtreectl.cli.context import Context, Json, Reason, context
from ddtreectl.errors import DdtreectlError, ExitCode
from ddtreectl.inventory.select import Place, Target, find_target

Targets = Annotated[
    list[str], typer.Argument(metavar="HOST[:GPU]...", help="Hosts, or GPUs by their index.")
]
STYLES = {"stopped": "green", "empty": "dim", "failed": "bold red", "stopping": "yellow"}


@dataclass(frozen=True)
class _Opened:
    """A target with a session."""

    target: Target
    session: Session


def cordon(
    ctx: typer.Context,
    targets: Targets,
    reason: Reason,
    as_json: Json = False,
) -> int:
    """Have nothing more started on hosts or GPUs. What runs there goes on.

    A host that cannot be reached is cordoned for this inventory at once, and on the host itself
    with the next cordon, uncordon, drain or watch that reaches it; the exit code is 4 then.
    """
    opened, kept = _open(context(ctx), targets)
    done = [_cordon(entry, reason, kept) for entry in opened]
    if as_json:
        output.document({"cordoned": [_cordoned_document(entry) for entry in done]})
    else:
        for entry in done:
            _say_cordoned(entry)
    return int(ExitCode.UNREACHABLE if any(entry.unreachable for entry in done) else ExitCode.DONE)


def uncordon(ctx: typer.Context, targets: Targets, as_json: Json = False) -> int:
    """Let services be started on hosts or GPUs again.

    Errors that the kernel log has of them up to now count as dealt with. To uncordon a host is to
    uncordon its GPUs too.
    """
    opened, kept = _open(context(ctx), targets)
    done: list[Uncordoned] = []
    failures: list[tuple[Target, DdtreectlError]] = []
    for entry in opened:
        try:
            done.append(cordons.uncordon(entry.session, entry.target, kept))
        except DdtreectlError as error:
            failures.append((entry.target, error))
    if as_json:
        output.document(_uncordoned_document(done, failures))
    else:
        for result in done:
            _say_uncordoned(result)
        for _, failure in failures:
            output.error(failure, as_json=False)
    if done and failures:
        return int(ExitCode.PARTIAL)
    return int(failures[0][1].exit_code if failures else ExitCode.DONE)


def drain(
    ctx: typer.Context,
    targets: Targets,
    reason: Reason = "drained",
    as_json: Json = False,
) -> int:
    """Cordon hosts or GPUs, all of them first, and stop their services gracefully.

    What is protected is never stopped. Ctrl-C ends the waiting, and says what goes on: cordons
    stay, and what systemd has begun to stop it stops.
    """
    opened, kept = _open(context(ctx), targets)
    interrupts = Interrupts(output.progress)
    cordoned: list[Cordoned] = []
    results: list[Drained] = []
    with interrupts.watch():
        try:
            with interrupts.shield():
                for entry in opened:
                    entry.session.interrupts = interrupts
                    cordoned.append(_cordon(entry, reason, kept))
                    if not as_json:
                        _say_cordoned(cordoned[-1])
            _drain(_affected(opened, cordoned), results)
        except InterruptedByOperatorError:
            pass  # of what is left it is said what goes on
    rest = _affected(opened, cordoned)[len(results) :]
    results += [draining.left(session, place) for session, place in rest]
    if as_json:
        output.document(
            {
                "cordoned": [_cordoned_document(entry) for entry in cordoned],
                "slots": [_drained_document(result) for result in results],
            }
        )
    else:
        _say_drained(results)
    return int(_code(cordoned, results))


def _affected(opened: list[_Opened], cordoned: list[Cordoned]) -> list[tuple[Session, Place]]:
    """The slots of the targets that can be reached, each once."""
    found = {
        (place.host_name, place.slot_name): (entry.session, place)
        for entry, done in zip(opened, cordoned, strict=True)
        if not done.unreachable
        for place in entry.target.places
    }
    return list(found.values())


def _drain(wanted: list[tuple[Session, Place]], results: list[Drained]) -> None:
    """Drain one slot after the other, until it is interrupted."""
    for session, place in wanted:
        results.append(draining.drain(session, place))
        if results[-1].state in LEFT:
            return


def _open(opened: Context, targets: list[str]) -> tuple[list[_Opened], KeptCordons]:
    inventory = opened.inventory()
    found = [find_target(inventory, text) for text in dict.fromkeys(targets)]
    sessions = {
        name: opened.session(inventory, name) for name in {target.host_name for target in found}
    }
    entries = [_Opened(target, sessions[target.host_name]) for target in found]
    return entries, KeptCordons(opened.path())


def _cordon(entry: _Opened, reason: str, kept: KeptCordons) -> Cordoned:
    with entry.session.report.step(f"cordon {entry.target}"):
        return cordons.cordon(entry.session, entry.target, reason, kept)


def _cordoned_document(entry: Cordoned) -> dict[str, object]:
    return {
        "target": str(entry.target),
        **entry.cordon.to_json(),
        "kept": entry.cordon.kept,
        "unreachable": entry.unreachable or None,
    }


def _uncordoned_document(
    done: list[Uncordoned], failures: list[tuple[Target, DdtreectlError]]
) -> dict[str, object]:
    return {
        "uncordoned": [
            {
                "target": str(entry.target),
                "ended": [{**cordon.to_json(), "kept": cordon.kept} for cordon in entry.ended],
                "settled_errors": entry.settled,
                "opened": list(entry.opened),
                "still": entry.still.to_json() if entry.still else None,
            }
            for entry in done
        ],
        "failed": [{"target": str(target), "error": error.message} for target, error in failures],
    }


def _say_uncordoned(entry: Uncordoned) -> None:
    told = [str(cordon).replace(" is cordoned", " was cordoned", 1) for cordon in entry.ended]
    if entry.settled:
        kinds = "kind" if entry.settled == 1 else "kinds"
        told.append(f"{entry.settled} {kinds} of errors in its kernel log are settled")
    told += [f"slot {slot}, whose service has moved, is open again" for slot in entry.opened]
    said = "; ".join(told) or "it was not cordoned"
    output.stdout().print(f"{entry.target}: {escape(said)}")
    if any(cordon.drained for cordon in entry.ended):
        again = f"`ddtreectl rollback {entry.target.host_name}` starts the last good one"
        output.stdout().print(f"  [cyan]hint[/]: what was drained there stays down; {again}")
    if entry.still:
        output.stdout().print(f"  [yellow]still[/]: {escape(str(entry.still))}")


def _say_cordoned(entry: Cordoned) -> None:
    console = output.stdout()
    console.print(f"{entry.target}: [yellow]cordoned[/] ({escape(entry.cordon.reason)})")
    if entry.unreachable:
        console.print(f"  {escape(entry.unreachable)}")
        console.print(
            "  [cyan]hint[/]: the cordon holds for this inventory; whoever else deploys does not "
            "know it until a cordon, uncordon, drain or watch reaches the host"
        )


def _drained_document(result: Drained) -> dict[str, object]:
    return {
        "host": result.place.host_name,
        "slot": result.place.slot_name,
        "state": result.state,
        "said": result.said or None,
    }


def _say_drained(results: list[Drained]) -> None:
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


def _code(cordoned: list[Cordoned], results: list[Drained]) -> ExitCode:
    codes = [result.exit_code for result in results]
    codes += [ExitCode.UNREACHABLE for entry in cordoned if entry.unreachable]
    bad = [code for code in codes if code is not ExitCode.DONE]
    if not bad:
        return ExitCode.DONE
    good = any(result.exit_code is ExitCode.DONE for result in results)
    return ExitCode.PARTIAL if good or len(set(bad)) > 1 else bad[0]
