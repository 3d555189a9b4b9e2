"""`ddtreectl cordon` and `ddtreectl uncordon`."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, TypeVar

import typer
from rich.markup import escape

from ddtreectl.apply import cordons
from ddtreectl.apply.cordons import Cordoned, Uncordoned
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.apply.on_targets import Opened, on_targets
from ddtreectl.cli import output
from ddtreectl.cli.context import Context, Json, LockWait, Reason, context
from ddtreectl.errors import DdtreectlError, ExitCode, UnreachableError
from ddtreectl.inventory.select import Target, find_target

T = TypeVar("T")

Targets = Annotated[
    list[str], typer.Argument(metavar="HOST[:GPU]...", help="Hosts, or GPUs by their index.")
]


def cordon(
    ctx: typer.Context,
    targets: Targets,
    reason: Reason,
    as_json: Json = False,
) -> int:
    """Have nothing more started on hosts or GPUs. What runs there goes on.

    A host that cannot be reached is cordoned for this inventory at once, and on the host itself
    with the next cordon, uncordon, drain or watch that reaches it. The exit code is 4 then, or 3
    where others could be reached.
    """
    entries, kept = open_targets(context(ctx), targets)
    done, failures = parted(on_targets(entries, lambda entry: cordon_one(entry, reason, kept)))
    if as_json:
        output.document(
            {
                "cordoned": [cordoned_document(entry) for entry in done],
                "failed": failed_document(failures),
            }
        )
    else:
        for entry in done:
            say_cordoned(entry)
        for _, failure in failures:
            output.error(failure, as_json=False)
    codes = [ExitCode.UNREACHABLE if entry.unreachable else ExitCode.DONE for entry in done]
    return int(combined([*codes, *(failure.exit_code for _, failure in failures)]))


def uncordon(
    ctx: typer.Context, targets: Targets, lock_wait: LockWait = 0, as_json: Json = False
) -> int:
    """Let services be started on hosts or GPUs again.

    Errors that the kernel log has of them up to now count as dealt with. To uncordon a host is to
    uncordon its GPUs too.
    """
    entries, kept = open_targets(context(ctx), targets)
    done, failures = parted(
        on_targets(
            entries,
            lambda entry: cordons.uncordon(entry.session, entry.target, kept, lock_wait),
            lock_wait=lock_wait,
        )
    )
    if as_json:
        output.document(_uncordoned_document(done, failures))
    else:
        for result in done:
            _say_uncordoned(result)
        for _, failure in failures:
            output.error(failure, as_json=False)
    codes = [*(ExitCode.DONE for _ in done), *(failure.exit_code for _, failure in failures)]
    return int(combined(codes))


def open_targets(opened: Context, targets: list[str]) -> tuple[list[Opened], KeptCordons]:
    """A session with the host of each target, and the cordons that the operator keeps.

    Raises:
        UsageError: the inventory has no such target.
    """
    inventory = opened.inventory()
    found = [find_target(inventory, text) for text in dict.fromkeys(targets)]
    names = {target.host_name for target in found}
    sessions = {
        name: opened.session(
            inventory, name, partial(output.progress, host=name) if len(names) > 1 else None
        )
        for name in names
    }
    entries = [Opened(target, sessions[target.host_name]) for target in found]
    return entries, KeptCordons(opened.path())


def cordon_one(entry: Opened, reason: str, kept: KeptCordons) -> Cordoned:
    """Cordon one target, and report it."""
    with entry.session.report.step(f"cordon {entry.target}"):
        return cordons.cordon(entry.session, entry.target, reason, kept)


def parted(
    outcomes: Sequence[tuple[Target, T | DdtreectlError]],
) -> tuple[list[T], list[tuple[Target, DdtreectlError]]]:
    """What was done, and what failed."""
    done = [outcome for _, outcome in outcomes if not isinstance(outcome, DdtreectlError)]
    failures = [(target, error) for target, error in outcomes if isinstance(error, DdtreectlError)]
    return done, failures


def combined(codes: Sequence[ExitCode]) -> ExitCode:
    """The exit code of a command on several targets: 3 where they differ."""
    return codes[0] if len(set(codes)) == 1 else ExitCode.PARTIAL


def failed_document(failures: list[tuple[Target, DdtreectlError]]) -> list[dict[str, object]]:
    """The targets that failed, as JSON."""
    return [
        {
            "target": str(target),
            "error": error.message,
            "unreachable": isinstance(error, UnreachableError),
        }
        for target, error in failures
    ]


def cordoned_document(entry: Cordoned) -> dict[str, object]:
    """What was cordoned, as JSON."""
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
        "failed": failed_document(failures),
    }


def _say_uncordoned(entry: Uncordoned) -> None:
    told = [str(cordon).replace(" is cordoned", " was cordoned", 1) for cordon in entry.ended]
    if entry.settled:
        kinds = "kind" if entry.settled == 1 else "kinds"
        told.append(f"{entry.settled} {kinds} of errors in its kernel log are settled")
    told += [f"slot {slot}, whose service has moved, is open again" for slot in entry.opened]
    said = "; ".join(told) or "it was not cordoned"
    output.stdout().print(f"{entry.target}: {escape(said)}")
    drained = {cordon.gpu for cordon in entry.ended if cordon.drained}
    left = [place for place in entry.target.places if drained.intersection(place.slot.gpus)]
    if left:
        ways = ", ".join(f"`ddtreectl rollback {place.words}`" for place in left)
        again = f"{ways} starts the last good one"
        output.stdout().print(f"  [cyan]hint[/]: what was drained there stays down; {again}")
    if entry.still:
        output.stdout().print(f"  [yellow]still[/]: {escape(str(entry.still))}")


def say_cordoned(entry: Cordoned) -> None:
    """Print what was cordoned."""
    console = output.stdout()
    console.print(f"{entry.target}: [yellow]cordoned[/] ({escape(entry.cordon.reason)})")
    if entry.before is not None and entry.before.reason != entry.cordon.reason:
        console.print(f"  in place of what was there: {escape(str(entry.before))}")
    if entry.unreachable:
        console.print(f"  {escape(entry.unreachable)}")
        console.print(
            "  [cyan]hint[/]: the cordon holds for this inventory; whoever else deploys does not "
            "know it until a cordon, uncordon, drain or watch reaches the host"
        )
