"""Brings services that have moved back to where they came from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ddtreectl.apply import generations, moved
from ddtreectl.apply.candidates import earlier_generation
from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.move_records import REASON, fenced, place_of, write
from ddtreectl.apply.router import Router
from ddtreectl.apply.session import Session
from ddtreectl.apply.survey import Survey
from ddtreectl.errors import DdtreectlError, StepError
from ddtreectl.facts.moves import Move
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.workers import Worker, out_of_reach
from ddtreectl.units.supervisor import Systemd


def undo(
    survey: Survey, noted: Sequence[Move], lock_wait: float, say: Callable[[str], None]
) -> None:
    """Bring services back to the slots that they came from, one after the other.

    The source is opened, serves again, is checked and gets requests; only then the target is taken
    out of the router and stops. It stands for the source until then: were it given a name without
    that before, the router would take it in anew, and it would get no requests meanwhile.

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
        say(f"start it in {move.source} and check its health")
        try:
            if router and old:
                _give_back(source, home, move, router, old, new)
            Deployment(source, home, lock_wait=lock_wait).rollback(move.generation)
            if router and old:
                _sure_of_requests(router, old)
        except BaseException:
            with source.interrupts.shield():
                if router and old and new:
                    with _said(say):  # the source is fenced whether the router is told or not
                        router.move(old.name, new.name)
                with suppress(DdtreectlError):  # a reboot ends it too, and the masks hold
                    moved.guard_again(source, home)
                if fenced(source, move, lock_wait):
                    write(target, place, move.now("fenced"))
            raise
        say(f"stop it in {move.target}")
        Deployment(target, place, lock_wait=lock_wait).stop()
        if router and old and new:
            with _said(say):
                router.unexpect(old.name, new.name)
                router.await_forgotten(source, old.name)
            moved.guard_again(source, home)
        generations.remove(target, target.layout.arrived(place.slot_name))
        survey.moves.forget(move)
        source.audit("moved-back", slot=home.slot_name, source=move.target)


@contextmanager
def _said(say: Callable[[str], None]) -> Iterator[None]:
    """Say what the router cannot be told, and go on."""
    try:
        yield
    except DdtreectlError as error:
        say(f"  ! {error.message} {error.cause}".rstrip())


def _give_back(
    source: Session, home: Place, move: Move, router: Router, old: Worker, new: Worker | None
) -> None:
    """Have the source start and be put in while the target, if it is a worker, goes on."""
    if new is None or not isinstance(source.supervisor, Systemd):
        router.forget(old.name)
        return
    wish, _ = earlier_generation(source, home, move.generation)
    moved.unguard(source, wish.candidate.unit, wish.candidate.unit_text)
    router.give_back(old.name, new.name)


def _sure_of_requests(router: Router, worker: Worker) -> None:
    """See that the source is in the router, where that can be asked.

    Raises:
        StepError: it is not.
    """
    found = router.facts()
    entry = found.worker(worker.name)
    if found.state == "up" and (entry is None or entry.status != "ready"):
        raise StepError(
            f"{worker.name} serves again, and the router sends it no requests",
            hint="`ddtreectl router status` shows how the router has it",
        )


def _end_cordons(survey: Survey, session: Session) -> None:
    facts = survey.facts[session.host.name]
    ours = [c for c in facts.records.cordons if c.kept == "host" and c.reason.startswith(REASON)]
    if ours:
        generations.remove(session, *(session.layout.cordon(entry.name) for entry in ours))


def is_reached(survey: Survey, move: Move) -> None:
    """See that the router gets answers from what comes back.

    Raises:
        StepError: it would not.
    """
    session, home = place_of(survey, move.source)
    worker = session.router.worker(home) if session.router else None
    known = survey.facts[home.host_name].records.of_slot(home.slot_name)
    back = next((entry.service for entry in known if entry.number == move.generation), None)
    if worker and back and (why := out_of_reach(worker, back)):
        raise StepError(
            f"generation {move.generation} of {move.source} cannot come back behind the router: "
            f"{why}",
            hint=f"`ddtreectl uncordon {survey.source}`, then `ddtreectl migrate "
            f"{move.target_host} {survey.source}`, brings the service with the address of its slot",
        )
