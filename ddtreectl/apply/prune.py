"""Removes what of a host is of no use any more."""

from shlex import quote

from ddtreectl.apply import unpacked
from ddtreectl.apply.claims import claim, functions, release
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.hosts.protocol import check
from ddtreectl.plan.prune import Superfluous, superfluous

DEADLINE = 600.0
BUSY, CLAIMED = 75, 77
"""Exit statuses: somebody builds the environment, or another root has begun to use it."""


def look(session: Session, keep: int) -> Superfluous:
    """What can go, with `keep` good generations of each slot left."""
    return superfluous(session.host.name, session.entry, session.slots(), keep)


def prune(session: Session, keep: int, *, lock_wait: float = 0.0) -> Superfluous:
    """Remove it, and return what that was; judged under the lock, so that no deploy comes between.

    Raises:
        LockedError: another operator is at work.
        StepError: something cannot be removed.
    """
    lock = HostLock(session.host, session.layout, session.operator, wait=lock_wait)
    with locked(session, lock):
        found = look(session, keep)
        claim(session, found.used)
        release(session, found.others)
        _remove(session, found)
        unpacked.prune(session)
    return found


def _remove(session: Session, found: Superfluous) -> None:
    layout = session.layout
    if found.empty:
        return
    session.audit(
        "prune",
        generations={slot: list(numbers) for slot, numbers in found.generations.items()},
        environments=list(found.environments),
    )
    if found.units:
        with session.report.step(f"remove {', '.join(found.units)}"):
            files = " ".join(quote(layout.unit(name)) for name in found.units)
            _run(session, f"rm -f {files}")
            session.host.run(session.supervisor.reload(), deadline=DEADLINE)
    for slot, numbers in found.generations.items():
        for number in numbers:
            with session.report.step(f"remove generation {number} of {slot}"):
                _run(session, f"rm -rf {quote(layout.generation(slot, number))}")
    for name in found.environments:
        with session.report.step(f"remove environment {name}"):
            folder = layout.environment(name)
            inputs = quote(f"{layout.environments}/.inputs/{name}")
            # The file that makes it count as finished goes first: half of one must not pass for it.
            text = (
                f"{functions(layout)} release {quote(name)}; "
                f"! claimed {quote(name)} || exit {CLAIMED}; "
                f"rm -f {quote(folder)}/environment.json && rm -rf {quote(folder)} {inputs}"
            )
            locked = f"flock -n -E {BUSY} {quote(folder)}.lock sh -c {quote(text)}"
            _run(session, f"{locked} && rm -f {quote(folder)}.lock || [ $? -eq {CLAIMED} ]")


def _run(session: Session, script: str) -> None:
    done = session.host.run(["sh", "-c", script], deadline=DEADLINE)
    if done.returncode == BUSY:
        raise StepError(
            f"what is of no use on `{session.host.name}` cannot be removed",
            cause="an installer is at work there, whoever started it",
            hint="the same command again, once it has ended",
        )
    check(done, f"what is of no use on `{session.host.name}` cannot be removed")
