"""Brings services that have moved back to where they came from."""

from collections.abc import Callable, Sequence

from ddtreectl.apply import generations, moved
from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.move_records import REASON, fenced, place_of, write
from ddtreectl.apply.session import Session
from ddtreectl.apply.survey import Survey
from ddtreectl.facts.moves import Move


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
                if fenced(source, move, lock_wait):
                    write(target, place, move.now("fenced"))
            raise
        say(f"stop it in {move.target}")
        Deployment(target, place, lock_wait=lock_wait).stop()
        generations.remove(target, target.layout.arrived(place.slot_name))
        survey.moves.forget(move)
        source.audit("moved-back", slot=home.slot_name, source=move.target)


def _end_cordons(survey: Survey, session: Session) -> None:
    facts = survey.facts[session.host.name]
    ours = [c for c in facts.records.cordons if c.kept == "host" and c.reason.startswith(REASON)]
    if ours:
        generations.remove(session, *(session.layout.cordon(entry.name) for entry in ours))
