"""Carries out the steps of one plan, one function for each action."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ddtreectl.apply import deadman, exchange, generations, memory, prepare
from ddtreectl.apply.exchange import COMMAND_DEADLINE
from ddtreectl.apply.health import Check, run_of
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.router import Router
from ddtreectl.apply.router_swap import take_out_for_a_swap
from ddtreectl.apply.session import Session
from ddtreectl.env.request import Request
from ddtreectl.facts.host import HostFacts
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.workers import Worker
from ddtreectl.plan.step import Action, Candidate, Phase, Step

ROOM = 60
"""Seconds for what a swap does besides starts and stops."""


@dataclass
class Execution:
    """The steps of one swap or stop, and what they leave for each other.

    Attributes:
        session: the operator at work.
        place: the slot.
        lock: held by this operator, checked before each step.
        candidate: what comes into service; None for a stop.
        back: what to return to.
        request: the environment of the candidate, where it may have to be built.
        facts: of the host, from before the first step.
        phase: of the step that was begun last.
        staged: whether this execution has written a new generation.
        health: the check of the candidate, once it was started.
        mark: where the journal of the candidate's unit ended before the start.
        taken_out: whether the router was told to send the slot no requests.
    """

    session: Session
    place: Place
    lock: HostLock
    candidate: Candidate | None
    back: Candidate | None = None
    request: Request | None = None
    facts: HostFacts = field(default_factory=HostFacts)
    phase: Phase = Phase.PREPARE
    staged: bool = False
    health: Check | None = None
    mark: str = "0"
    taken_out: bool = False
    _held: dict[str, memory.Held] = field(default_factory=dict)
    _acts: dict[Action, Callable[[Step], None]] = field(init=False)

    def __post_init__(self) -> None:
        """Bind each action to its function."""
        self._acts = {
            Action.BUILD_ENVIRONMENT: lambda _: self._build_environment(),
            Action.STAGE_GENERATION: lambda _: self._stage(),
            Action.CHECK_UNIT: lambda _: prepare.check_unit(
                self.session, self.place.slot_name, self._wanted
            ),
            Action.CHECK_MODEL: lambda _: prepare.check_model(self.session, self._wanted),
            Action.BEGIN_SWAP: lambda _: self._begin_swap(),
            Action.ARM_REVERT: lambda _: self._arm_revert(),
            Action.TAKE_OUT: self._take_out,
            Action.AWAIT_IDLE: lambda _: self._await_idle(),
            Action.STOP: self._stop,
            Action.AWAIT_RELEASE: lambda _: self._await_release(),
            Action.INSTALL_UNIT: lambda _: exchange.install_unit(self.session, self._wanted),
            Action.START: lambda _: self._start(),
            Action.HEALTH_UNIT: lambda _: self._check.unit(),
            Action.HEALTH_HTTP: lambda _: self._check.http(),
            Action.HEALTH_MODEL: lambda _: self._check.model(),
            Action.DISARM_REVERT: lambda _: self._disarm_revert(),
            Action.MARK_GOOD: lambda _: self._mark_good(),
            Action.PUT_IN: lambda _: self.put_in(),
            Action.MARK_STOPPED: lambda _: self._mark_stopped(),
        }

    @property
    def _wanted(self) -> Candidate:
        assert self.candidate is not None  # noqa: S101 - plans without candidate only stop
        return self.candidate

    @property
    def _check(self) -> Check:
        assert self.health is not None  # noqa: S101 - START comes first in every plan
        return self.health

    def run(self, steps: tuple[Step, ...]) -> None:
        """Carry out `steps` in order; the first failure ends them."""
        for step in steps:
            self.phase = step.phase
            self._begin(step.action.value)
            with self.session.report.step(step.title):
                self._acts[step.action](step)

    def _begin(self, doing: str) -> None:
        """Make sure that work may go on, and have the host know with what."""
        self.lock.check()
        self.session.interrupts.check()
        self.lock.fence.doing = doing

    def _build_environment(self) -> None:
        assert self.request is not None  # noqa: S101 - only a new generation has the step
        prepare.build_environment(
            self.session,
            self._wanted,
            self.request,
            self.facts,
            lambda action: self._begin(f"{Action.BUILD_ENVIRONMENT}:{action}"),
        )

    def _stage(self) -> None:
        self.staged = True
        generations.stage(self.session, self.place.slot_name, self._wanted)

    def _begin_swap(self) -> None:
        generations.begin_swap(
            self.session,
            self.place.slot_name,
            self._wanted.number,
            self.back.number if self.back else None,
        )

    def _arm_revert(self) -> None:
        failed = self._wanted.number if self.staged else None
        token = self.lock.fence.token
        deadman.arm(self.session, self.place, failed=failed, back=self.back, token=token)

    def _disarm_revert(self) -> None:
        self.session.host.reconnect()
        deadman.disarm(self.session, self.place)

    def _take_out(self, step: Step) -> None:
        router, worker = self._routed
        self.taken_out = True
        if self.candidate is None:  # a stop is an order, whoever else serves
            router.take_out(self.session, worker)
            return
        service = self.candidate.service
        once = service.start_timeout + service.stop_timeout
        within = router.settings.drain_timeout + 2 * once + ROOM  # there, and back if it fails
        take_out_for_a_swap(router, self.session, worker, back_within=within, alone=step.alone)

    def _await_idle(self) -> None:
        router, worker = self._routed
        router.await_idle(self.session, self.place, worker)

    def put_in(self) -> None:
        """Have the router send requests to the slot; Ctrl-C has to wait for it."""
        router, worker = self._routed
        with self.session.interrupts.shield():
            router.put_in(self.session, worker)

    @property
    def _routed(self) -> tuple[Router, Worker]:
        router = self.session.router
        worker = router.worker(self.place) if router else None
        assert router is not None  # noqa: S101 - only plans of such slots have these steps
        assert worker is not None  # noqa: S101
        return router, worker

    def _stop(self, step: Step) -> None:
        self._held = memory.measure(self.session, self.place)
        exchange.stop(self.session, step.units)

    def _await_release(self) -> None:
        exchange.await_release(self.session, self.place, port_wanted=self.candidate is not None)
        patience = memory.MARGIN + (self.candidate.service.stop_timeout if self.candidate else 0)
        memory.await_baseline(self.session, self.place, self._held, patience)

    def _start(self) -> None:
        session, candidate = self.session, self._wanted
        facts = session.look()
        before = frozenset(
            run
            for name in slot_units(self.place.slot_name)
            if (run := run_of(facts, facts.unit(name))) is not None
        )
        marked = session.host.run(session.supervisor.mark(candidate.unit), deadline=30.0)
        self.mark = marked.stdout.strip()
        self.health = Check(session, candidate, before, None)
        self.health.job = exchange.start(session, candidate)

    def _mark_good(self) -> None:
        session, slot, candidate = self.session, self.place.slot_name, self._wanted
        generations.mark(session, slot, candidate.number, "good")
        generations.remove(session, session.layout.stopped(slot))
        self._boot(slot, candidate.unit)
        generations.end_swap(session, slot)

    def _mark_stopped(self) -> None:
        session, slot = self.session, self.place.slot_name
        session.host.put(session.layout.stopped(slot), b"{}")
        self._boot(slot, None)
        generations.end_swap(session, slot)

    def _boot(self, slot: str, unit: str | None) -> None:
        """Start `unit` at boot and no other unit of the slot."""
        session, supervisor = self.session, self.session.supervisor
        facts = session.look()
        others = [name for name in slot_units(slot) if name != unit and facts.unit(name).enabled]
        if others:
            session.host.run(supervisor.disable(others), deadline=COMMAND_DEADLINE)
        if unit and not facts.unit(unit).enabled:
            enabled = session.host.run(supervisor.enable(unit), deadline=COMMAND_DEADLINE)
            check(enabled, f"unit `{unit}` cannot be enabled")
