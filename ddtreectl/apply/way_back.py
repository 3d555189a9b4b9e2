"""The way back: after a failed swap, and after one that its operator has left."""

from collections.abc import Callable

from ddtreectl.apply import deadman, evidence, exchange, generations
from ddtreectl.apply.execute import Execution
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.session import Session
from ddtreectl.errors import (
    MISTAKE,
    DdtreectlError,
    LockedError,
    RolledBackError,
    StepError,
    UnreachableError,
)
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.records import Swap
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.plan.step import Action, Candidate, Phase
from ddtreectl.plan.swap import plan_stop, plan_swap, restore_steps
from ddtreectl.plan.wish import Wish, last_good


class WayBack:
    """Leaves a slot in a known state.

    Args:
        session: the operator at work.
        place: the slot.
        lock: held by this operator.
    """

    def __init__(self, session: Session, place: Place, lock: HostLock) -> None:
        self._session = session
        self._place = place
        self._lock = lock

    def conclude(self, execution: Execution, error: BaseException) -> DdtreectlError:
        """Undo what a failed execution has done, and return what to tell the operator."""
        if isinstance(error, LockedError):  # whoever has the slot now sees to it
            return error
        what, cause, hint = _described(error)
        number = execution.candidate.number if execution.candidate else None
        if execution.phase is Phase.PREPARE:
            if execution.staged and number is not None:
                self._mark_failed(number, what)
            if execution.candidate is None:
                return StepError(what, cause=cause, hint=hint)
            kind = UnreachableError if isinstance(error, UnreachableError) else StepError
            return kind(what, cause=cause, hint=hint or "what served before still serves")
        seen: tuple[str, ...] = ()
        if execution.health is not None:
            seen = evidence.gather(self._session, execution.health, execution.mark)
        self._session.report.say(f"  ! {what}")
        restored = self._restore(execution, what)
        place = self._place
        see = f"see `ddtreectl status {place.host_name}` and `ddtreectl logs {place.words}`"
        if isinstance(restored, LockedError):
            return restored
        if isinstance(restored, UnreachableError):
            return UnreachableError(what, cause=cause, hint=self._left_alone(), evidence=seen)
        if execution.back is None:
            text = f"{what}; the slot is empty: there was no good generation to return to"
            if restored is not None:
                text = f"{what}; the slot could not be emptied: {restored.message}"
            return StepError(text, cause=cause, hint=hint or see, evidence=seen)
        back = f"generation {execution.back.number}"
        if restored is None:
            text = f"{what}; {back} serves again"
            return RolledBackError(text, cause=cause, hint=hint, evidence=seen)
        text = f"{what}; {back} could not be brought back: {restored.message}"
        return StepError(text, cause=cause, hint=see, evidence=seen)

    def _left_alone(self) -> str:
        """What happens to a host that cannot be reached in the middle of a swap."""
        place = self._place
        return (
            "where systemd runs, the host returns to the last good generation by itself, "
            f"{place.host.revert_after} s after it has last heard of this command; see "
            f"`ddtreectl status {place.host_name}` when it answers again"
        )

    def _restore(self, execution: Execution, reason: str) -> DdtreectlError | None:
        """Mark the candidate failed and bring `back` into service. Returns why it cannot."""
        session, failed = self._session, execution.candidate
        try:
            if failed is not None:
                if execution.health is not None:
                    exchange.end_job(session, execution.health.job, failed.unit)
                if execution.staged:
                    self._mark_failed(failed.number, reason)
            self._bring_back(execution.back)
        except DdtreectlError as error:
            return error
        return None

    def _bring_back(self, back: Candidate | None) -> None:
        """Bring a good generation into service, or empty the slot where there is none."""
        session, place = self._session, self._place
        facts = session.slots()
        execution = Execution(session, place, self._lock, back)
        if back is None:
            plan = plan_stop(place, facts)
            execution.run(tuple(s for s in plan.steps if s.action is not Action.MARK_STOPPED))
            self._try(lambda: generations.end_swap(session, place.slot_name))
        elif plan_swap(Wish(place, back), facts).empty:  # it was not stopped yet
            self._try(lambda: generations.end_swap(session, place.slot_name))
        else:
            session.report.say(f"  bringing generation {back.number} back")
            if facts.systemd_run:
                token = self._lock.fence.token
                self._try(lambda: deadman.arm(session, place, failed=None, back=back, token=token))
            try:
                execution.run(restore_steps(place, back, facts))
            except DdtreectlError as error:
                if execution.phase is not Phase.CONFIRM:
                    raise
                self._warn(error)
        if facts.systemd:
            deadman.disarm(session, place)

    def _mark_failed(self, number: int, reason: str) -> None:
        session, slot = self._session, self._place.slot_name
        self._try(lambda: generations.mark(session, slot, number, "failed", reason))

    def _try(self, act: Callable[[], None]) -> None:
        """Do what the records need and a service does not: a full disk must not keep it down."""
        try:
            act()
        except DdtreectlError as error:
            self._warn(error)

    def _warn(self, error: DdtreectlError) -> None:
        self._session.report.say(f"  ! {error.message} {error.cause}".rstrip())

    def recover(self) -> int | None:
        """Set right what an operator who is gone has left. Returns what came back."""
        session, place = self._session, self._place
        swap = self.settle()
        if swap is None:
            return None
        facts = session.slots()
        good = last_good(place, facts)
        number = swap.back if swap.back is not None else good.number if good else None
        with session.interrupts.shield():
            self._bring_back(candidate_of(session, place, facts, number))
        session.audit("recovered", slot=place.slot_name, generation=number, failed=swap.to)
        return number or 0

    def settle(self) -> Swap | None:
        """End what an operator who is gone was about to start, and mark it failed.

        Returns the swap that was interrupted; what it left in the slot is left there.
        """
        session, place = self._session, self._place
        if self._lock.taken_over is not None:
            session.report.say(f"took over the lock of {self._lock.taken_over}, who is gone")
            session.audit("lock-taken-over", previous=str(self._lock.taken_over))
        swap = session.certain("records").records.swap_of(place.slot_name)
        if swap is None:
            return None
        facts = session.certain("processes", "records")
        session.report.say(
            f"the swap to generation {swap.to} by {swap.owner} was interrupted: setting it right"
        )
        for unit in slot_units(place.slot_name):
            self._end_jobs(facts, unit)
        for entry in facts.records.of_slot(place.slot_name):
            if entry.number == swap.to and entry.status == "pending":
                self._mark_failed(swap.to, "interrupted")
        return swap

    def _end_jobs(self, facts: HostFacts, unit: str) -> None:
        for process in facts.processes.values():
            if f"start {unit}" in process.command:
                exchange.end_job(self._session, process.pid, unit)


def candidate_of(
    session: Session, place: Place, facts: HostFacts, number: int | None
) -> Candidate | None:
    """Generation `number` of a slot as it lies on the host, or None where there is none."""
    for entry in facts.records.of_slot(place.slot_name):
        if entry.number == number:
            return generations.load(session, entry)
    return None


def _described(error: BaseException) -> tuple[str, str, str]:
    if isinstance(error, DdtreectlError):
        return error.message, error.cause, error.hint
    if isinstance(error, InterruptedByOperatorError):
        return f"interrupted by {error.name}", "", ""
    return f"ddtreectl failed: {error!r}", "", MISTAKE
