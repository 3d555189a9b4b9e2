"""Deploy, roll back, stop: lock, set right what was interrupted, plan, execute."""

from dataclasses import dataclass, replace

from ddtreectl.apply.candidates import earlier_generation, facts_for, new_generation
from ddtreectl.apply.execute import Execution
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.patience import patient
from ddtreectl.apply.session import Session
from ddtreectl.apply.way_back import WayBack, candidate_of
from ddtreectl.env.request import Request
from ddtreectl.errors import DdtreectlError, LockedError, RefusedError, UnreachableError
from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.inventory.workers import out_of_reach
from ddtreectl.plan.routed import SYNC, routed
from ddtreectl.plan.step import Plan
from ddtreectl.plan.swap import plan_stop, plan_swap
from ddtreectl.plan.wish import serves, serving

LOOK = "look at the host"


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
        lock_wait: seconds to wait for another operator to finish.
    """

    def __init__(self, session: Session, place: Place, *, lock_wait: float = 0.0) -> None:
        self._session = session
        self._place = place
        self._lock = HostLock(
            session.host,
            session.layout,
            session.operator,
            revert_after=place.host.revert_after,
            wait=lock_wait,
        )
        self._way_back = WayBack(session, place, self._lock)

    def plan(self, service: ServiceSpec, *, force: bool = False, new_gpu: bool = False) -> Plan:
        """What `deploy` would do now. Changes nothing."""
        facts = facts_for(self._session, service)
        wish, _ = new_generation(
            self._place, service, facts, force=force, new_gpu=new_gpu, guarded=self._guarded
        )
        facts = patient(self._session, wish, facts)
        return self._with_swap_note(self._routed(plan_swap(wish, facts)), facts)

    def plan_rollback(self, to: int | None) -> Plan:
        """What `rollback` would do now. Changes nothing."""
        wish, facts = earlier_generation(self._session, self._place, to)
        facts = patient(self._session, wish, facts)
        return self._with_swap_note(self._routed(plan_swap(wish, facts)), facts)

    def deploy(
        self, service: ServiceSpec, *, force: bool = False, new_gpu: bool = False
    ) -> Outcome:
        """Bring `service` into the slot.

        Raises:
            RefusedError: a check says no; nothing was changed.
            RolledBackError: the service failed, and the last good generation serves again.
            DdtreectlError: it failed otherwise.
        """
        with locked(self._session, self._lock):
            recovered = self._recover()
            with self._session.report.step(LOOK):
                facts = facts_for(self._session, service)
                wish, request = new_generation(
                    self._place, service, facts, force=force, new_gpu=new_gpu, guarded=self._guarded
                )
                facts = patient(self._session, wish, facts)
            plan = self._told(plan_swap(wish, facts))
            return self._apply("deploy", plan, facts, recovered, request)

    def rollback(self, to: int | None) -> Outcome:
        """Bring a good generation back: `to`, or the one that was good before the one that serves.

        After an interrupted swap, setting that right is the rollback.
        """
        with locked(self._session, self._lock):
            recovered = self._recover()
            if recovered is not None and to is None:
                facts = self._session.slots()
                now = serving(self._place, facts)
                number = now.number if now else None
                candidate = candidate_of(self._session, self._place, facts, number)
                done = Plan(self._place.host_name, self._place.slot_name, (), candidate)
                return Outcome(done, applied=True, recovered=recovered)
            with self._session.report.step(LOOK):
                wish, facts = earlier_generation(self._session, self._place, to)
                facts = patient(self._session, wish, facts)
            plan = self._told(plan_swap(wish, facts))
            return self._apply("rollback", plan, facts, recovered)

    def stop(self) -> Outcome:
        """Stop whatever runs in the slot, and what an interrupted swap was about to start."""
        with locked(self._session, self._lock):
            self._way_back.settle()
            with self._session.report.step(LOOK):
                facts = self._session.slots()
            plan = self._told(plan_stop(self._place, facts))
            return self._apply("stop", plan, facts, None)

    def _recover(self) -> int | None:
        recovered = self._way_back.recover()
        if recovered is not None:
            self._put_back()
        return recovered

    @property
    def _guarded(self) -> tuple[str, str] | None:
        """What the unit asks before it starts, where the slot is behind a router."""
        router = self._session.router
        worker = router.worker(self._place) if router else None
        url = router.urls.get(self._place.host_name) if router else None
        return (url, worker.name) if worker and url else None

    def _routed(self, plan: Plan) -> Plan:
        """The plan with what the router of the fleet makes necessary."""
        router = self._session.router
        worker = router.worker(self._place) if router else None
        if router is None or worker is None:
            return plan
        return routed(plan, worker, router.facts(), router.settings)

    def _told(self, plan: Plan) -> Plan:
        """The same for a plan that is carried out: what it means for clients is said at once."""
        found = self._routed(plan)
        for note in found.notes[len(plan.notes) :] if found.steps and not found.refusals else ():
            self._session.report.say(f"  ! {note}")
        return found

    def _put_back(self) -> None:
        """Have the router send requests to what serves in the slot, after a way back."""
        router, session = self._session.router, self._session
        worker = router.worker(self._place) if router else None
        if router is None or worker is None:
            return
        try:
            facts = session.slots()
            now = serving(self._place, facts)
            why = out_of_reach(worker, now.service) if now and now.service else ""
            if why:
                session.report.say(f"  ! {worker.name} stays out of the router: {why}")
            if not why and serves(self._place, facts):
                with session.report.step(f"put {worker.name} back into the router"):
                    router.put_in(session, worker)
            else:
                router.give_up(session, worker)
        except DdtreectlError as error:  # what is told of the way back is worse
            session.report.say(f"  ! {error.message} {error.cause}".rstrip())

    def _with_swap_note(self, plan: Plan, facts: HostFacts) -> Plan:
        swap = facts.records.swap_of(self._place.slot_name)
        if swap is None:
            return plan
        note = f"the swap to generation {swap.to} by {swap.owner} was interrupted"
        return replace(plan, notes=(f"{note}; it is set right first", *plan.notes))

    def _apply(
        self,
        name: str,
        plan: Plan,
        facts: HostFacts,
        recovered: int | None,
        request: Request | None = None,
    ) -> Outcome:
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
            back=candidate_of(session, self._place, facts, plan.back),
            request=request,
            facts=facts,
        )
        try:
            execution.run(plan.steps)
        except BaseException as error:
            with session.interrupts.shield():
                failure = self._way_back.conclude(execution, error)
                lost = isinstance(failure, LockedError | UnreachableError)
                if execution.taken_out and lost:
                    session.report.say(f"  ! the router sends it no requests; later, {SYNC}")
                elif execution.taken_out:
                    self._put_back()
                if not lost:
                    session.audit(f"{name}-failed", slot=plan.slot, reason=failure.message)
            raise failure from error
        session.audit(f"{name}-done", slot=plan.slot, generation=number)
        served = plan.candidate
        session.remember({plan.slot: (served.service, served.number) if served else None})
        return Outcome(plan, applied=True, recovered=recovered)
