"""Sees that a roll leaves the router a worker of each model.

What serves is asked of the router before each host, for services that fail, and other operators,
change it while a roll goes on.
"""

from collections.abc import Callable, Collection, Mapping

from ddtreectl.facts.router import RouterFacts
from ddtreectl.plan import standby
from ddtreectl.plan.standby import Limit, Room


class Standby:
    """The workers that serve while others are swapped.

    Args:
        workers: the name of the worker that a host of the roll has; hosts without one left out.
        look: asks the router.
    """

    def __init__(self, workers: Mapping[str, str], look: Callable[[], RouterFacts]) -> None:
        self._workers = workers
        self._look = look
        self._first = look()
        self._alone = {n for n in workers.values() if standby.alone(self._first, n)}
        self._seen: tuple[frozenset[str], RouterFacts] | None = None

    def limits(self, at_once: int) -> tuple[Limit, ...]:
        """What of the workers may not be out at the same time, if `at_once` were asked for."""
        return standby.limits(self._first, list(self._workers.values()), at_once)

    def room(self, host: str, busy: Collection[str], ended: Collection[str]) -> Room:
        """Whether a host may be begun.

        Args:
            host: the host.
            busy: hosts that are worked on.
            ended: hosts that have been dealt with.
        """
        name = self._workers.get(host)
        if name is None:
            return Room.FREE
        out, done = self._of(busy), self._of(ended)
        facts = self._facts(out | {f"ended {entry}" for entry in done})
        return standby.room(facts, name, out, done, alone=name in self._alone)

    def _facts(self, state: frozenset[str]) -> RouterFacts:
        """What the router has; asked once while nothing has begun or ended."""
        if self._seen is None or self._seen[0] != state:
            self._seen = (state, self._look())
        return self._seen[1]

    def _of(self, hosts: Collection[str]) -> frozenset[str]:
        return frozenset(self._workers[host] for host in hosts if host in self._workers)
