"""Rolls a deploy out over many hosts: canaries first, so many at a time, up to so many failures.

A host that cannot be reached has failed like any other: while nobody knows what it runs, no more
hosts are taken out of service. Once the failures are spent no further host is begun; those in
progress finish.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ddtreectl.apply.deploy import Outcome
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.errors import (
    MISTAKE,
    DdtreectlError,
    ExitCode,
    LockedError,
    RefusedError,
    RolledBackError,
    UnreachableError,
)
from ddtreectl.hosts.arrivals import arrival
from ddtreectl.plan.standby import Room

Gate = Callable[[str, Collection[str], Collection[str]], Room]
"""Whether a host may be taken out of service, by those in progress and those that have ended."""


class Result(StrEnum):
    """What became of one target of a roll."""

    WAITING = "waiting"
    BEGUN = "begun"
    DEPLOYED = "deployed"
    UNCHANGED = "unchanged"
    ROLLED_BACK = "rolled back"
    REFUSED = "refused"
    FAILED = "failed"
    LOCKED = "locked"
    UNREACHABLE = "unreachable"
    INTERRUPTED = "interrupted"

    @property
    def good(self) -> bool:
        """Whether the target serves what was asked for."""
        return self in {Result.DEPLOYED, Result.UNCHANGED}

    @property
    def ended(self) -> bool:
        """Whether nothing goes on there any more."""
        return self not in {Result.WAITING, Result.BEGUN}


INTERRUPTED_BY = "interrupted by "

_CODES = {
    Result.ROLLED_BACK: ExitCode.ROLLED_BACK,
    Result.LOCKED: ExitCode.LOCKED,
    Result.UNREACHABLE: ExitCode.UNREACHABLE,
}


@dataclass(frozen=True)
class Target:
    """One host of a roll.

    Attributes:
        host: its name.
        slot: the slot that is deployed to.
        result: what became of it.
        generation: the one that serves now, where it is known.
        message: why it is not what was asked for.
        seconds: how long it took.
    """

    host: str
    slot: str
    result: Result = Result.WAITING
    generation: int | None = None
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Rules:
    """How a roll goes on.

    Attributes:
        canary: how many of the first targets must be good before any other is begun.
        parallel: how many are worked on at the same time.
        max_failures: how many may fail before no other is begun.
        skip_unreachable: whether an unreachable host does not count as a failure.
    """

    canary: int = 1
    parallel: int = 4
    max_failures: int = 0
    skip_unreachable: bool = False

    def failures(self, targets: Iterable[Target]) -> int:
        """How many of the targets have failed."""
        forgiven = {Result.UNREACHABLE} if self.skip_unreachable else set()
        ended = [target.result for target in targets if target.result.ended]
        return sum(not result.good and result not in forgiven for result in ended)


class Roll:
    """A roll in progress.

    Args:
        targets: in the order in which they are begun; those that are good already are left out.
        rules: how it goes on.
        work: deploys to a host, in a thread of its own; returns what it did.
        stop: asks the work on a host to end at its next look, because of a signal.
        record: told of every change of a target.
        gate: asked before each host whether others serve meanwhile; None where nothing depends on
            that.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        rules: Rules,
        *,
        work: Callable[[str], Outcome],
        stop: Callable[[str, str], None],
        record: Callable[[Target], None],
        gate: Gate | None = None,
    ) -> None:
        self.targets = {target.host: target for target in targets}
        self._rules = rules
        self._work = work
        self._stop = stop
        self._record = record
        self._gate = gate
        self._ended: queue.SimpleQueue[tuple[str, Outcome | BaseException]] = queue.SimpleQueue()
        self.halted = ""
        """Why targets were left out; empty while none are."""

    def run(self) -> None:
        """Carry it out, until nothing more may begin and nothing is in progress."""
        while True:
            for target in self._next():
                if not self.halted:  # a signal may have come since the last one was begun
                    self._begin(target)
            if not self._in_progress():
                return
            host, outcome = arrival(self._ended)
            self._end(self.targets[host], outcome)

    def halt(self, signal: str) -> None:
        """Begin nothing more, and let what is in progress go back. Fit for a signal handler."""
        self.halted = f"{INTERRUPTED_BY}{signal}"
        for target in self._in_progress():
            self._stop(target.host, signal)

    def _in_progress(self) -> list[Target]:
        return [t for t in self.targets.values() if t.result is Result.BEGUN]

    def _next(self) -> Iterator[Target]:
        """The targets to begin now."""
        entries = list(self.targets.values())
        canaries, failed = entries[: self._rules.canary], self._rules.failures(entries)
        waiting = [target for target in entries if target.result is Result.WAITING]
        if not waiting or self.halted:
            return
        if self._rules.failures(canaries):
            self.halted = "a canary has failed"
            return
        if failed > self._rules.max_failures:
            self.halted = f"{failed} failed, and {self._rules.max_failures} may"
            return
        if any(not target.result.ended for target in canaries):
            waiting = [target for target in waiting if target in canaries]
        yield from self._let_through(waiting)

    def _let_through(self, waiting: Sequence[Target]) -> Iterator[Target]:
        """Those of the waiting targets that there is room for; each is begun before the next."""
        for target in waiting:
            busy = [entry.host for entry in self._in_progress()]
            if len(busy) >= self._rules.parallel:
                return
            room = self._room(target.host, busy)
            if room is Room.NONE:
                self.halted = (
                    f"{target.host} is the last one that the router has ready for its model, and "
                    "one that was dealt with before gets no requests"
                )
                return
            if room is Room.FREE:
                yield target

    def _room(self, host: str, busy: Sequence[str]) -> Room:
        if self._gate is None:
            return Room.FREE
        return self._gate(
            host, busy, [name for name, target in self.targets.items() if target.result.ended]
        )

    def _begin(self, target: Target) -> None:
        self._set(replace(target, result=Result.BEGUN, seconds=time.monotonic()))

        def one() -> None:
            try:
                self._ended.put((target.host, self._work(target.host)))
            except BaseException as error:  # noqa: BLE001 - told in the summary, whatever it is
                self._ended.put((target.host, error))

        threading.Thread(target=one, daemon=True).start()
        if self.halted:  # by a signal that came while it was begun, and may not have seen it
            self._stop(target.host, self.halted.removeprefix(INTERRUPTED_BY))

    def _end(self, target: Target, outcome: Outcome | BaseException) -> None:
        target = replace(target, seconds=time.monotonic() - target.seconds)
        if isinstance(outcome, BaseException):
            self._set(replace(target, result=_result(outcome), message=_message(outcome)))
            return
        number = outcome.plan.candidate.number if outcome.plan.candidate else None
        result = Result.DEPLOYED if outcome.applied else Result.UNCHANGED
        self._set(replace(target, result=result, generation=number))

    def _set(self, target: Target) -> None:
        self.targets[target.host] = target
        self._record(target)


def exit_code(targets: Iterable[Target]) -> ExitCode:
    """0 where all are good, 3 where some are; else what those that ended have in common, or 1."""
    results = [target.result for target in targets]
    if all(result.good for result in results):
        return ExitCode.DONE
    if any(result.good for result in results):
        return ExitCode.PARTIAL
    codes = {_CODES.get(result, ExitCode.FAILED) for result in results if result.ended}
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED


def _result(error: BaseException) -> Result:
    kinds: dict[type[BaseException], Result] = {
        UnreachableError: Result.UNREACHABLE,
        LockedError: Result.LOCKED,
        RolledBackError: Result.ROLLED_BACK,
        RefusedError: Result.REFUSED,
        InterruptedByOperatorError: Result.INTERRUPTED,
    }
    return next((r for kind, r in kinds.items() if isinstance(error, kind)), Result.FAILED)


def _message(error: BaseException) -> str:
    if isinstance(error, DdtreectlError):
        return error.message
    if isinstance(error, InterruptedByOperatorError):
        return f"interrupted by {error.name}"
    return f"{error!r}: {MISTAKE}"
