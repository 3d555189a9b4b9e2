"""Carries out a migration: provisions and checks, starts, verifies, marks it moved, fences.

Each step can be done again, so a migration that was ended anywhere goes on with the same command:
what it has reached is on the target and with the operator.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ddtreectl.apply import cordons, generations, moved, weights
from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.operator import now
from ddtreectl.apply.provision import Provisioning
from ddtreectl.apply.session import Session
from ddtreectl.apply.survey import Survey, moved_to
from ddtreectl.apply.takeover import Takeover
from ddtreectl.errors import DdtreectlError, RefusedError, StepError
from ddtreectl.facts.moves import Move, State
from ddtreectl.inventory.select import Place, find_host, find_target
from ddtreectl.plan.migration import MigrationPlan, MoveAction, MoveStep, SlotMove

REASON = "its services migrate"
"""How the reason of a migration's cordon begins; an undo ends it."""


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
        by_name = {move.name: move for move in self.plan.moves}
        for step in self.plan.steps:
            move = by_name[f"{step.place.host_name}/{step.place.slot_name}"]
            result = self.results[move.name]
            if result.error:
                continue
            self.say(f"{step.title}")
            try:
                with self._timed(step.action):
                    self._act(step, move)
            except InterruptedByOperatorError:
                raise
            except DdtreectlError as error:
                if isinstance(error.__cause__, InterruptedByOperatorError):
                    raise error.__cause__ from error
                result.error = error
                self.say(f"! {error.message}")
                if not result.serves:
                    self._withdraw(move)

    def _act(self, step: MoveStep, move: SlotMove) -> None:
        match step.action:
            case MoveAction.CORDON:
                self._cordon()
            case MoveAction.ANNOUNCE:
                self._note(move, "moving")
            case MoveAction.PROVISION:
                self._provision(move)
            case MoveAction.COPY_WEIGHTS:
                self._copy(move, step.folder)
            case MoveAction.START:
                self._start(move)
            case MoveAction.MARK_MOVED:
                self._mark(move)
            case MoveAction.FENCE:
                self._fence(move)

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

    def _cordon(self) -> None:
        session = self._session(self.survey.source.host_name)
        facts = self.survey.facts.get(session.host.name)
        finding = self.survey.finding()
        why = finding.reason if finding else "it cannot be reached" if facts is None else ""
        step = next(s for s in self.plan.steps if s.action is MoveAction.CORDON)
        target = find_target(self.survey.inventory, step.title.removeprefix("cordon "))
        done = cordons.cordon(session, target, f"{REASON}: {why}"[:300], self.kept_cordons)
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

    def _provision(self, move: SlotMove) -> None:
        session, place = self._target(move)
        assert move.service is not None  # noqa: S101 - it has a target
        backend = move.service.backend
        entry = find_host(self.survey.inventory, place.host_name)
        inventory, settings = self.survey.inventory, entry.environment
        try:
            Provisioning(session, inventory, backend, settings).provision(lock_wait=self.lock_wait)
        except StepError as error:
            source = move.source.host_name
            if source not in self.survey.facts or source == place.host_name:
                raise
            self.say(f"  ! {error.message} {error.cause}".rstrip())
            self.say(f"  taking the environment of {source} over instead")
            taken = Takeover(session, self._session(source), backend, settings, inventory)
            taken.take(lock_wait=self.lock_wait)

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
        Deployment(session, place, lock_wait=self.lock_wait).deploy(service)
        steps = session.report.seconds
        checks = sum(seconds for title, seconds in steps if title.startswith("health"))
        self.seconds["verify"] = self.seconds.get("verify", 0.0) + checks
        self.seconds[MoveAction.START] = self.seconds.get(MoveAction.START, 0.0) - checks

    def _mark(self, move: SlotMove) -> None:
        with self._session(move.source.host_name).interrupts.shield():
            self.results[move.name].serves = True
            self._note(move, "moved")
            session, place = self._target(move)
            self._reroute(move)
            session.audit("moved-here", slot=place.slot_name, source=move.name)

    def _reroute(self, move: SlotMove) -> None:
        """Have the target stand for the source at the router: that is what a source asks there."""
        session, place = self._target(move)
        router = session.router
        old, new = (router.worker(move.source), router.worker(place)) if router else (None, None)
        if router is None or old is None or new is None:
            return
        try:
            router.move(old.name, new.name)
        except DdtreectlError as error:  # the service serves; `--resume` says it again
            self.say(f"  ! {error.message} {error.cause}".rstrip())

    def _fence(self, move: SlotMove) -> None:
        session = self._session(move.source.host_name)
        if move.state == "moved":
            self._reroute(move)
        worker = session.router.worker(move.source) if session.router else None
        if session.router and worker and move.serves:
            session.router.await_idle(session, move.source, worker)
        noted = self.results[move.name].move
        assert noted is not None  # noqa: S101 - it was marked before
        with session.interrupts.shield():
            done = _fenced(session, noted, self.lock_wait)
        if not done:
            raise StepError(
                f"{move.name} is marked and masked, and something of it still runs",
                hint=f"`ddtreectl migrate {self.plan.source} --resume` looks again",
            )
        self.results[move.name].fenced = True
        self._note(move, "fenced")
        cordons.deliver(session, self.kept_cordons)


def place_of(survey: Survey, name: str) -> tuple[Session, Place]:
    """The slot called `host/slot`, with a session.

    Raises:
        StepError: the inventory does not have it.
    """
    host, _, slot = name.partition("/")
    session = survey.sessions.get(host)
    if session is None or slot not in session.entry.slots:
        raise StepError(
            f"the service has moved to {name}, which the inventory does not have",
            hint="put that slot back into the inventory",
        )
    return session, Place(host, session.entry, slot, session.entry.slots[slot])


def write(session: Session, place: Place, noted: Move) -> None:
    """Note a move on its target."""
    path = session.layout.arrived(place.slot_name)
    session.host.put(path, json.dumps(noted.to_json(), sort_keys=True).encode())


def undo(
    survey: Survey, noted: Sequence[Move], lock_wait: float, say: Callable[[str], None]
) -> None:
    """Bring services back to the slots that they came from, one after the other.

    The source is opened, serves again and is checked; only then the target stops.

    Raises:
        DdtreectlError: the source does not serve; it is fenced again, and the target goes on.
    """
    for move in noted:
        source, home = place_of(survey, move.source)
        target, place = place_of(survey, move.target)
        lock = HostLock(source.host, source.layout, source.operator, wait=lock_wait)
        say(f"open {move.source} again")
        write(target, place, move.now("moved"))  # a split until one of them is known to be down
        source.moves = ()
        with locked(source, lock):
            moved.open_slot(source, home)
            _end_cordons(survey, source)
        router = source.router
        old, new = (router.worker(home), router.worker(place)) if router else (None, None)
        if router and old:
            router.forget(old.name)
        say(f"start it in {move.source} and check its health")
        try:
            Deployment(source, home, lock_wait=lock_wait).rollback(move.generation)
        except BaseException:
            with source.interrupts.shield():
                if router and old and new:
                    router.move(old.name, new.name)
                if _fenced(source, move, lock_wait):
                    write(target, place, move.now("fenced"))
            raise
        say(f"stop it in {move.target}")
        Deployment(target, place, lock_wait=lock_wait).stop()
        generations.remove(target, target.layout.arrived(place.slot_name))
        survey.moves.forget(move)
        source.audit("moved-back", slot=home.slot_name, source=move.target)


def _fenced(session: Session, move: Move, lock_wait: float) -> bool:
    """Fence the source of a move, whose target serves. Returns whether nothing of it is left."""
    others = tuple(m for m in session.moves if m.source_slot != move.source_slot)
    session.moves = (*others, move.now("moved"))
    lock = HostLock(session.host, session.layout, session.operator, wait=lock_wait)
    with locked(session, lock):  # which is a contact, and fences
        return all(m.source_slot != move.source_slot for m in session.moves)


def _end_cordons(survey: Survey, session: Session) -> None:
    facts = survey.facts[session.host.name]
    ours = [c for c in facts.records.cordons if c.kept == "host" and c.reason.startswith(REASON)]
    if ours:
        generations.remove(session, *(session.layout.cordon(entry.name) for entry in ours))
