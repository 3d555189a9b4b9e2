"""Carries out a migration: provisions and checks, starts, verifies, marks it moved, fences.

Each step can be done again, so a migration that was ended anywhere goes on with the same command:
what it has reached is on the target and with the operator.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from ddtreectl.apply import cordons, generations, moved, weights
from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.move_records import REASON, fenced, place_of, rivals, write
from ddtreectl.apply.operator import now
from ddtreectl.apply.prospects import moved_to
from ddtreectl.apply.session import Session
from ddtreectl.apply.survey import Survey
from ddtreectl.errors import DdtreectlError, LockedError, RefusedError, StepError
from ddtreectl.facts.moves import Move, State
from ddtreectl.inventory.select import Place, find_target
from ddtreectl.plan.migration import MigrationPlan, MoveAction, MoveStep, SlotMove
from ddtreectl.plan.placement import has_come


@dataclass
class Moved:
    """What became of one service.

    Attributes:
        move: the record of it; None where nothing was noted yet.
        error: why it did not move, or why the source is not fenced yet.
        serves: whether the target serves.
        fenced: whether the source does not, and will not.
    """

    move: Move | None = None
    error: DdtreectlError | None = None
    serves: bool = False
    fenced: bool = False


@dataclass
class Migration:
    """One migration.

    Attributes:
        survey: what was found.
        plan: what is done.
        kept_cordons: where the cordon of a host that is out of reach is kept.
        lock_wait: seconds to wait for another operator to finish.
        say: tells the operator.
        results: by slot of the source.
        seconds: what each kind of step has taken; of a start, health apart as `verify`.
    """

    survey: Survey
    plan: MigrationPlan
    kept_cordons: KeptCordons
    lock_wait: float
    say: Callable[[str], None]
    results: dict[str, Moved] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Do it. A service that cannot move does not keep the others from it.

        Raises:
            RefusedError: a check says no; nothing was changed.
            InterruptedByOperatorError: Ctrl-C; `--resume` goes on.
        """
        if self.plan.refusals:
            raise RefusedError(
                f"`{self.plan.source}` cannot be migrated now: {self.plan.refusals[0]}",
                cause="\n".join(self.plan.refusals[1:]),
                hint="`--dry-run` shows what speaks against each slot; nothing was changed",
            )
        self.results = {
            move.name: Moved(
                move.under_way,
                serves=move.state in {"moved", "fenced"},
                fenced=move.state == "fenced",
            )
            for move in self.plan.moves
        }
        for move in self.plan.stuck:
            self.results[move.name].error = RefusedError(move.refusals[0])
        by_name = {move.name: move for move in self.plan.moves}
        for step in self.plan.steps:
            concerned = [by_name[f"{place.host_name}/{place.slot_name}"] for place in step.places]
            going = [move for move in concerned if self._goes_on(step, move)]
            if going:
                self._step(step, going)

    def _goes_on(self, step: MoveStep, move: SlotMove) -> bool:
        """Whether a step is still to be done.

        That a source cannot be fenced is no reason to leave what was begun elsewhere.
        """
        result = self.results[move.name]
        marked = result.move is not None and result.move.state != "moving"
        return not result.error or (step.action is MoveAction.ABANDON and marked)

    def _step(self, step: MoveStep, moves: list[SlotMove]) -> None:
        """Do a step; where it fails, it fails for all that it is for."""
        self.say(f"{step.title}")
        try:
            with self._timed(step.action):
                self._act(step, moves)
        except DdtreectlError as error:
            if isinstance(error.__cause__, InterruptedByOperatorError):
                raise error.__cause__ from error
            self.say(f"! {error.message}")
            if step.action is MoveAction.CORDON:
                return  # the fence keeps the source down all the same
            for move in moves:
                result = self.results[move.name]
                result.error = result.error or error
                if not result.serves:
                    self._withdraw(move)

    def _act(self, step: MoveStep, moves: list[SlotMove]) -> None:
        move = moves[0]  # what is done for several is the same for each
        match step.action:
            case MoveAction.CORDON:
                self._cordon(step.subject)
            case MoveAction.ANNOUNCE:
                self._note(move, "moving")
                self._alone(move)
            case MoveAction.PROVISION:
                self._provision(move)
            case MoveAction.COPY_WEIGHTS:
                self._copy(move, step.subject)
            case MoveAction.START:
                self._start(move)
            case MoveAction.MARK_MOVED:
                self._mark(move)
            case MoveAction.FENCE:
                self._fence(move)
            case MoveAction.ABANDON:
                self._abandon(move, step.subject)

    @contextmanager
    def _timed(self, action: MoveAction) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.seconds[action] = self.seconds.get(action, 0.0) + took

    def _session(self, host: str) -> Session:
        return self.survey.sessions[host]

    def _target(self, move: SlotMove) -> tuple[Session, Place]:
        """The slot that takes it, with a session."""
        if move.target is not None:
            return self._session(move.target.place.host_name), move.target.place
        assert move.under_way is not None  # noqa: S101 - a plan has one or the other
        return place_of(self.survey, move.under_way.target)

    def _cordon(self, subject: str) -> None:
        session = self._session(self.survey.source.host_name)
        facts = self.survey.facts.get(session.host.name)
        target = find_target(self.survey.inventory, subject)
        finding = self.survey.finding(target)
        why = finding.reason if finding else "it cannot be reached" if facts is None else ""
        done = cordons.cordon(
            session,
            target,
            f"{REASON}: {why}"[:300],
            self.kept_cordons,
            unreachable=self.survey.unreachable.get(session.host.name, ""),
        )
        if done.unreachable:
            self.say(f"  ! {done.unreachable}; the cordon is kept here until it answers")

    def _note(self, move: SlotMove, state: State) -> None:
        """Have target and operator know how far it is."""
        session, place = self._target(move)
        before = self.results[move.name].move
        noted = Move(
            source=move.name,
            target=f"{place.host_name}/{place.slot_name}",
            state=state,
            generation=move.generation,
            service=move.service,
            by=str(session.operator),
            at=before.at if before and before.state != "moving" else now(),
        )
        write(session, place, noted)
        if state == "fenced":
            self.survey.moves.forget(noted)
        else:
            self.survey.moves.keep(noted)
        self.results[move.name].move = noted

    def _alone(self, move: SlotMove) -> None:
        """Whoever meets another move of the same service gives way, and says whose that is.

        A note is written before one looks for others, so of two operators one gives way at least.
        """
        noted = self.results[move.name].move
        if noted and (others := rivals(self.survey, noted)):
            raise LockedError(
                f"{others[0].by} moves {move.name} to {others[0].target} at the same time",
                hint=f"once that has ended, `ddtreectl migrate {self.plan.source}` goes on",
            )

    def _withdraw(self, move: SlotMove) -> None:
        """Take back the note on a move that has failed before its target served."""
        session, place = self._target(move)
        noted = self.results[move.name].move
        if noted is None:
            return
        try:
            generations.remove(session, session.layout.arrived(place.slot_name))
            self.survey.moves.forget(noted)
        except DdtreectlError as error:
            self.say(f"  ! {error.message} {error.cause}".rstrip())
        self._route(move, "unexpect")

    def _provision(self, move: SlotMove) -> None:
        assert move.service is not None  # noqa: S101 - it has a target
        assert move.target is not None  # noqa: S101
        host, giver = move.target.place.host_name, move.target.taken_from
        donors, backend = self.survey.donors, move.service.backend
        if giver:
            donors.take(host, giver, backend, self.lock_wait)
        else:
            donors.provide(host, backend, self.lock_wait, self.say)

    def _copy(self, move: SlotMove, folder: str) -> None:
        session, _ = self._target(move)
        donor = self.survey.donor(folder)
        if donor is None:
            raise StepError(f"no host that can be reached has {folder}")
        weights.bring(self._session(donor), session, folder)

    def _start(self, move: SlotMove) -> None:
        session, place = self._target(move)
        assert move.service is not None  # noqa: S101 - it has a target
        service = moved_to(move.service, place)
        if service.api_key:
            session.keys = {**session.keys, place.slot_name: service.api_key}
        session.report.seconds.clear()
        self._route(move, "expect")
        Deployment(session, place, lock_wait=self.lock_wait).deploy(service)
        steps = session.report.seconds
        checks = sum(seconds for title, seconds in steps if title.startswith("health"))
        self.seconds["verify"] = self.seconds.get("verify", 0.0) + checks
        self.seconds[MoveAction.START] = self.seconds.get(MoveAction.START, 0.0) - checks

    def _mark(self, move: SlotMove) -> None:
        try:
            self._alone(move)
        except LockedError:
            session, place = self._target(move)
            Deployment(session, place, lock_wait=self.lock_wait).stop()
            raise
        with self._session(move.source.host_name).interrupts.shield():
            self.results[move.name].serves = True
            self._note(move, "moved")
            session, place = self._target(move)
            self._route(move, "move")
            session.audit("moved-here", slot=place.slot_name, source=move.name)

    def _route(self, move: SlotMove, what: Literal["expect", "unexpect", "move"]) -> None:
        """Tell the router, whom the source asks, that the target will stand for it, or does."""
        session, place = self._target(move)
        router = session.router
        old, new = (router.worker(move.source), router.worker(place)) if router else (None, None)
        if router is None or old is None or new is None:
            return
        try:
            match what:
                case "expect":
                    router.expect(old.name, new.name)
                case "unexpect":
                    router.unexpect(old.name, new.name)
                case "move":
                    router.move(old.name, new.name)
        except DdtreectlError as error:  # what serves goes on; `--resume` says it again
            self.say(f"  ! {error.message} {error.cause}".rstrip())

    def _fence(self, move: SlotMove) -> None:
        session = self._session(move.source.host_name)
        if move.state == "moved":
            self._route(move, "move")
        worker = session.router.worker(move.source) if session.router else None
        if session.router and worker and move.serves:
            session.router.await_idle(session, move.source, worker)
        noted = self.results[move.name].move
        assert noted is not None  # noqa: S101 - it was marked before
        with session.interrupts.shield():
            if not fenced(session, noted, self.lock_wait):
                raise StepError(
                    f"{move.name} is marked and masked, and something of it still runs",
                    hint=f"`ddtreectl migrate {self.plan.source} --resume` looks again",
                )
            self.results[move.name].fenced = True
            self._note(move, "fenced")
        cordons.deliver(session, self.kept_cordons)

    def _abandon(self, move: SlotMove, slot: str) -> None:
        """Have a slot that the service was to come to, and did not, serve it no more.

        What somebody else has deployed there meanwhile is left alone.
        """
        session, place = place_of(self.survey, slot)
        noted = self.results[move.name].move
        assert noted is not None  # noqa: S101 - it was marked before
        lock = HostLock(session.host, session.layout, session.operator, wait=self.lock_wait)
        with session.interrupts.shield(), locked(session, lock):
            facts = session.slots()
            if noted.service and has_come(move.name, noted.service, place, facts):
                moved.fence(session, place, replace(noted, source=slot, state="moved"))
            else:
                generations.remove(session, session.layout.arrived(place.slot_name))
