"""Which workers of a router serve while others are swapped. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ddtreectl.facts.router import RouterFacts, RouterWorker


class Room(StrEnum):
    """Whether a worker may be taken out of the router.

    FREE: others serve its model meanwhile, or it serves nobody.
    WAIT: they do once those that are worked on are back.
    NONE: it is the last one that serves its model, and others should.
    """

    FREE = "free"
    WAIT = "wait"
    NONE = "none"


@dataclass(frozen=True)
class Limit:
    """How many of some workers may be out of the router at a time.

    Attributes:
        model: what they serve.
        workers: their names.
        at_once: how many of them; 1 for a single worker, whose clients see errors in any case.
    """

    model: str
    workers: tuple[str, ...]
    at_once: int

    def __str__(self) -> str:
        """How a plan tells it."""
        return (
            f"of {', '.join(self.workers)} at most {self.at_once} at a time is out of the router, "
            f"so that `{self.model}` is served meanwhile"
        )


def room(
    facts: RouterFacts, name: str, busy: Collection[str], ended: Collection[str], *, alone: bool
) -> Room:
    """Whether worker `name` may be taken out.

    Where a roll changes the model, the last worker of the old one goes out all the same; but not
    while one that the roll has left gets no requests.

    Args:
        facts: the router. Of one that cannot be reached nothing is known: then one at a time.
        name: the worker.
        busy: workers that are out, or may be at any moment, and come back.
        ended: workers that have been dealt with.
        alone: whether it was the only one of its model before anything was done.
    """
    if facts.state != "up":
        return Room.WAIT if facts.state == "unreachable" and busy else Room.FREE
    worker = facts.worker(name)
    if alone or worker is None or worker.status != "ready" or _others(facts, worker, busy):
        return Room.FREE
    if busy:
        return Room.WAIT
    ready = {entry.name for entry in facts.workers if entry.status == "ready"}
    return Room.FREE if ready.issuperset(ended) else Room.NONE


def alone(facts: RouterFacts, name: str) -> bool:
    """Whether worker `name` is known to be the only one that serves its model.

    One that an operator swaps just now counts as serving: it comes back.
    """
    worker = facts.worker(name)
    return worker is not None and not replaced(facts, worker) and not coming(facts, worker)


def replaced(facts: RouterFacts, worker: RouterWorker) -> bool:
    """Whether others get the requests of `worker` as soon as it is out."""
    return bool(_others(facts, worker, ()))


def coming(facts: RouterFacts, worker: RouterWorker) -> tuple[str, ...]:
    """The workers that are swapped just now, and will get the requests of `worker` then."""
    ready = {entry.name for entry in facts.workers if _in_service(facts, entry)}
    return tuple(
        name
        for name, models in sorted(facts.out.items())
        if name != worker.name and name not in ready and worker.models <= models
    )


def limits(facts: RouterFacts, names: Sequence[str], at_once: int) -> tuple[Limit, ...]:
    """What of the workers `names` may not be out at the same time, if `at_once` were asked for."""
    found: dict[str, Limit] = {}
    for name in names:
        worker = facts.worker(name)
        if worker is None or worker.status != "ready":
            continue
        model = ", ".join(sorted(worker.models)) or "what it serves"
        together = (*(found[model].workers if model in found else ()), name)
        found[model] = Limit(model, together, max(len(_others(facts, worker, ())), 1))
    return tuple(
        limit for limit in found.values() if limit.at_once < min(len(limit.workers), at_once)
    )


def _others(
    facts: RouterFacts, worker: RouterWorker, busy: Collection[str]
) -> tuple[RouterWorker, ...]:
    """The workers that get the requests of `worker` while it is out."""
    return tuple(
        entry
        for entry in facts.workers
        if entry.name != worker.name
        and entry.name not in busy
        and _in_service(facts, entry)
        and worker.models <= entry.models
    )


def _in_service(facts: RouterFacts, entry: RouterWorker) -> bool:
    """Whether a worker gets requests, and is to go on so; the router is late to know of a list.

    What somebody else has put in is not on the list, and goes by its URL.
    """
    named = facts.listed is None or entry.name in facts.listed or entry.name == entry.url
    return named and entry.status == "ready"
