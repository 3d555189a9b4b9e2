"""The same work on many hosts at once: so many at a time, and none may hold up the others."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ddtreectl.errors import DdtreectlError, UnreachableError
from ddtreectl.hosts.arrivals import arrival

T = TypeVar("T")

AT_ONCE = 16
DEADLINE = 120.0


def on_each(
    names: Sequence[str],
    work: Callable[[str], T],
    *,
    at_once: int = AT_ONCE,
    deadline: float | None = DEADLINE,
) -> Iterator[tuple[str, T | DdtreectlError]]:
    """Do `work` for each host, and yield each outcome when it is known.

    Args:
        names: the hosts.
        work: called with a host's name, in a thread of its own.
        at_once: how many are worked on at the same time.
        deadline: seconds that one host may take. Its thread is left to end by itself then, and its
            place is given to the next host. None for work whose every step has a deadline.
    """
    waiting = list(reversed(names))
    began: dict[str, float] = {}
    outcomes: queue.SimpleQueue[tuple[str, T | BaseException]] = queue.SimpleQueue()

    def one(name: str) -> None:
        try:
            outcomes.put((name, work(name)))
        except BaseException as error:  # noqa: BLE001 - raised again by who asked for the work
            outcomes.put((name, error))

    while waiting or began:
        while waiting and len(began) < at_once:
            name = waiting.pop()
            began[name] = time.monotonic()
            threading.Thread(target=one, args=(name,), daemon=True).start()
        first = min(began, key=began.__getitem__)
        try:
            left = None if deadline is None else began[first] + deadline - time.monotonic()
            name, outcome = arrival(outcomes, within=left)
        except queue.Empty:
            del began[first]
            yield first, UnreachableError(f"`{first}` has not answered within {deadline:g} s")
            continue
        if began.pop(name, None) is None:
            continue  # it was given up before
        if isinstance(outcome, BaseException) and not isinstance(outcome, DdtreectlError):
            raise outcome
        yield name, outcome
