"""Deploy, roll back, stop: lock, set right what was interrupted, plan, execute, revert."""

from dataclasses import dataclass, replace

from ddtreectl import bundle
from ddtreectl.apply import deadman, evidence, exchange, generations
from ddtreectl.apply.execute import Execution
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.session import Session
from ddtreectl.env.lock import EnvironmentLock
from ddtreectl.env.wheel import engine_wheel
from ddtreectl.errors import (
    DdtreectlError,
    RefusedError,
    RolledBackError,
    StepError,
    UsageError,
)
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.records import Generation
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.plan.step import Action, Candidate, Phase, Plan
from ddtreectl.plan.swap import plan_stop, plan_swap, restore_steps
from ddtreectl.plan.wish import Wish, last_good, next_number, serving
from ddtreectl.units.render import render


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Attributes:
        plan: what was done, or would be.
        applied: whether it was done.
        recovered: the generation that was brought back first, after an interrupted swap.
    """

    plan: Plan
    applied: bool
    recovered: int | None = None


class Deployment:
    """Commands for one slot.

    Args:
        session: the operator at work on the slot's host.
        place: the slot.
    """

    def __init__(self, session: Session, place: Place) -> None:
        self._session = session
        self._place = place
        self._lock = HostLock(session.host, session.layout, session.operator)

    def plan(self, service: ServiceSpec, *, force: bool = False) -> Plan:
        """What `deploy` would do now. Changes nothing."""
        facts = self._facts(service)
        return self._with_swap_note(plan_swap(self._wish(service, facts, force), facts), facts)

    def plan_rollback(self, to: int | None) -> Plan:
        """What `rollback` would do now. Changes nothing."""
        wish, facts = self._wish_back(to)
        return self._with_swap_note(plan_swap(wish, facts), facts)

    def deploy(self, service: ServiceSpec, *, force: bool = False) -> Outcome:
        """Bring `service` into the slot.

        Raises:
            RefusedError: a check says no; nothing was changed.
            RolledBackError: the service failed, and the last good generation serves again.
            DdtreectlError: it failed otherwise.
        """
        with self._lock.held(self._session.interrupts):
            recovered = self._recover()
            facts = self._facts(service)
            plan = plan_swap(self._wish(service, facts, force), facts)
            return self._apply("deploy", plan, facts, recovered)

    def rollback(self, to: int | None) -> Outcome:
        """Bring a good generation back: `to`, or the one that was good before the one that serves.

        After an interrupted swap, setting that right is the rollback.
        """
        with self._lock.held(self._session.interrupts):
            recovered = self._recover()
            if recovered is not None and to is None:
                now = serving(self._place, self._facts(None))
                candidate = generations.load(self._session, now) if now else None
                done = Plan(self._place.host_name, self._place.slot_name, (), candidate)
                return Outcome(done, applied=True, recovered=recovered)
            wish, facts = self._wish_back(to)
            return self._apply("rollback", plan_swap(wish, facts), facts, recovered)

    def stop(self) -> Outcome:
        """Stop whatever runs in the slot."""
        with self._lock.held(self._session.interrupts):
            facts = self._facts(None)
            return self._apply("stop", plan_stop(self._place, facts), facts, None)

    # ---- what the commands have in common ----

    def _facts(self, service: ServiceSpec | None) -> HostFacts:
        folders = (service.model, service.drafter) if service else ()
        return self._session.gather(folders)

    def _wish(self, service: ServiceSpec, facts: HostFacts, force: bool) -> Wish:
        """The candidate for `service`: the next generation, in the environment that fits."""
        environment = "engine-unknown"
        if facts.python is not None:
            constraints = bundle.constraints().read_text()
            lock = EnvironmentLock.for_python(facts.python, engine_wheel(), constraints)
            environment = lock.name
        number = next_number(self._place, facts)
        unit = render(
            layout=self._place.layout,
            slot=self._place.slot_name,
            service=service,
            generation=number,
            environment=environment,
        )
        candidate = Candidate(
            number=number,
            service=service,
            environment=environment,
            unit=unit.name,
            unit_text=unit.text,
            environment_file=unit.environment_file,
            staged=False,
        )
        return Wish(self._place, candidate, unit.argv, force)

    def _wish_back(self, to: int | None) -> tuple[Wish, HostFacts]:
        """The generation to go back to, and the facts about the host and its model folders."""
        candidate = generations.load(self._session, self._target(self._facts(None), to))
        return Wish(self._place, candidate), self._facts(candidate.service)

    def _target(self, facts: HostFacts, to: int | None) -> Generation:
        entries = facts.records.of_slot(self._place.slot_name)
        where = f"`{self._place.slot_name}` of `{self._place.host_name}`"
        listed = ", ".join(f"{entry.number} ({entry.status})" for entry in entries) or "none"
        if to is not None:
            for entry in entries:
                if entry.number == to and entry.status == "good":
                    return entry
            raise UsageError(
                f"generation {to} of {where} is not one to go back to",
                hint=f"only good generations are; there are: {listed}",
            )
        now = serving(self._place, facts)
        good = [
            e for e in entries if e.status == "good" and (now is None or e.number != now.number)
        ]
        if not good:
            raise UsageError(
                f"there is no other good generation of {where}", hint=f"there are: {listed}"
            )
        return max(good, key=lambda entry: (entry.changed_at, entry.number))

    def _with_swap_note(self, plan: Plan, facts: HostFacts) -> Plan:
        swap = facts.records.swap_of(self._place.slot_name)
        if swap is None:
            return plan
        note = f"the swap to generation {swap.to} by {swap.owner} was interrupted"
        return replace(plan, notes=(f"{note}; it is set right first", *plan.notes))

    def _apply(self, name: str, plan: Plan, facts: HostFacts, recovered: int | None) -> Outcome:
        session = self._session
        if plan.refusals:
            raise RefusedError(
                f"`{plan.host}` cannot take this now: {plan.refusals[0]}",
                cause="\n".join(plan.refusals[1:]),
                hint="nothing was changed",
            )
        if plan.empty:
            return Outcome(plan, applied=False, recovered=recovered)
        number = plan.candidate.number if plan.candidate else None
        session.audit(name, command=session.operator.command, slot=plan.slot, generation=number)
        execution = Execution(
            session,
            self._place,
            self._lock,
            plan.candidate,
            back=self._candidate(facts, plan.back),
            abi=facts.python.abi if facts.python else "",
        )
        try:
            execution.run(plan.steps)
        except BaseException as error:
            with session.interrupts.shield():
                failure = self._conclude(execution, error)
                session.audit(f"{name}-failed", slot=plan.slot, reason=failure.message)
            if not isinstance(error, DdtreectlError | InterruptedByOperatorError):
                raise
            raise failure from error
        session.audit(f"{name}-done", slot=plan.slot, generation=number)
        return Outcome(plan, applied=True, recovered=recovered)

    def _candidate(self, facts: HostFacts, number: int | None) -> Candidate | None:
        for entry in facts.records.of_slot(self._place.slot_name):
            if entry.number == number:
                return generations.load(self._session, entry)
        return None

    # ---- failures ----

    def _conclude(self, execution: Execution, error: BaseException) -> DdtreectlError:
        """Leave the slot in a known state, and say which."""
        what, cause, hint = _described(error)
        number = execution.candidate.number if execution.candidate else None
        if execution.phase is Phase.PREPARE:
            if execution.staged and number is not None:
                generations.mark(self._session, self._place.slot_name, number, "failed", what)
            if execution.candidate is None:
                return StepError(what, cause=cause, hint=hint)
            return StepError(what, cause=cause, hint=hint or "what served before still serves")
        seen: tuple[str, ...] = ()
        if execution.health is not None:
            seen = evidence.gather(self._session, execution.health, execution.mark)
        self._session.report.say(f"  ! {what}")
        restored = self._restore(execution, what)
        see = f"see `ddtreectl status {self._place.host_name}` and `ddtreectl logs`"
        if execution.back is None:
            text = f"{what}; the slot is empty: there was no good generation to return to"
            return StepError(text, cause=cause, hint=hint or see, evidence=seen)
        back = f"generation {execution.back.number}"
        if restored is None:
            text = f"{what}; {back} serves again"
            return RolledBackError(text, cause=cause, hint=hint, evidence=seen)
        text = f"{what}; {back} could not be brought back: {restored.message}"
        return StepError(text, cause=cause, hint=see, evidence=seen)

    def _restore(self, execution: Execution, reason: str) -> DdtreectlError | None:
        """Mark the candidate failed and bring `back` into service. Returns why it cannot."""
        session, place = self._session, self._place
        failed = execution.candidate
        try:
            if failed is not None:
                if execution.health is not None:
                    exchange.end_job(session, execution.health.job, failed.unit)
                if execution.staged:
                    generations.mark(session, place.slot_name, failed.number, "failed", reason)
            self._bring_back(execution.back)
        except DdtreectlError as error:
            return error
        return None

    def _bring_back(self, back: Candidate | None) -> None:
        """Bring a good generation into service, or empty the slot where there is none."""
        session, place = self._session, self._place
        facts = session.gather()
        execution = Execution(session, place, self._lock, back)
        if back is None:
            plan = plan_stop(place, facts)
            execution.run(tuple(s for s in plan.steps if s.action is not Action.MARK_STOPPED))
            generations.end_swap(session, place.slot_name)
        else:
            session.report.say(f"  bringing generation {back.number} back")
            if facts.systemd_run:
                deadman.arm(session, place, back.service, failed=None, back=back)
            execution.run(restore_steps(place, back, facts))
        if facts.systemd:
            deadman.disarm(session, place)

    def _recover(self) -> int | None:
        """Set right what an operator who is gone has left. Returns what came back."""
        session, place = self._session, self._place
        if self._lock.taken_over is not None:
            session.report.say(f"took over the lock of {self._lock.taken_over}, who is gone")
            session.audit("lock-taken-over", previous=str(self._lock.taken_over))
        facts = self._facts(None)
        swap = facts.records.swap_of(place.slot_name)
        if swap is None:
            return None
        session.report.say(
            f"the swap to generation {swap.to} by {swap.owner} was interrupted: setting it right"
        )
        good = last_good(place, facts)
        number = swap.back if swap.back is not None else good.number if good else None
        for unit in slot_units(place.slot_name):
            self._end_jobs(facts, unit)
        for entry in facts.records.of_slot(place.slot_name):
            if entry.number == swap.to and entry.status == "pending":
                generations.mark(session, place.slot_name, swap.to, "failed", "interrupted")
        with session.interrupts.shield():
            self._bring_back(self._candidate(facts, number))
        session.audit("recovered", slot=place.slot_name, generation=number, failed=swap.to)
        return number or 0

    def _end_jobs(self, facts: HostFacts, unit: str) -> None:
        for process in facts.processes.values():
            if f"start {unit}" in process.command:
                exchange.end_job(self._session, process.pid, unit)


def _described(error: BaseException) -> tuple[str, str, str]:
    if isinstance(error, DdtreectlError):
        return error.message, error.cause, error.hint
    if isinstance(error, InterruptedByOperatorError):
        return f"interrupted by {error.name}", "", ""
    return f"ddtreectl failed: {error!r}", "", "this is a mistake in ddtreectl; please report it"
