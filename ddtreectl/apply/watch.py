"""Hosts that are looked at again and again, each over a connection that is kept."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from ddtreectl.errors import DdtreectlError, UnreachableError
from ddtreectl.hosts.arrivals import arrival
from ddtreectl.hosts.pool import AT_ONCE

T = TypeVar("T")

AGAIN_AFTER = 5.0
"""Seconds until a host that could not be looked at is tried again."""


class Watch(Generic[T]):
    """Looks at hosts at the same time, and gathers what each has told last.

    Args:
        names: the hosts.
        look: what a host tells, again and again; called anew when it has failed.
        patience: seconds of a round in which a host must have told something new.
        at_once: how many hosts are connected to at the same time.
    """

    def __init__(
        self,
        names: Sequence[str],
        look: Callable[[str], Iterator[T]],
        patience: float,
        at_once: int = AT_ONCE,
    ) -> None:
        self._names = names
        self._look = look
        self._patience = patience
        self._connecting = threading.Semaphore(at_once)
        # Bounded, so that hosts which tell more than is asked for have to wait.
        self._told: queue.Queue[tuple[str, T | BaseException]] = queue.Queue(len(names))

    def rounds(self) -> Iterator[dict[str, T | DdtreectlError]]:
        """What all hosts have told, each time that every one of them has told something new.

        A host that does not within the time of a round counts as one that does not answer.
        """
        for name in self._names:
            threading.Thread(target=self._follow, args=(name,), daemon=True).start()
        last: dict[str, T | DdtreectlError] = {}
        while True:
            began, waiting = time.monotonic(), set(self._names)
            while waiting:
                left = began + self._patience - time.monotonic()
                try:
                    name, outcome = arrival(self._told, within=left)
                except queue.Empty:
                    break
                if isinstance(outcome, BaseException) and not isinstance(outcome, DdtreectlError):
                    raise outcome
                last[name] = outcome
                waiting.discard(name)
            for name in waiting:
                if not isinstance(last.get(name), DdtreectlError):
                    last[name] = UnreachableError(
                        f"`{name}` has told nothing for {self._patience:g} s"
                    )
            yield {name: last[name] for name in self._names}

    def _follow(self, name: str) -> None:
        while True:
            try:
                looks = self._look(name)
                with self._connecting:
                    first = next(looks, None)
                if first is not None:
                    self._told.put((name, first))
                for found in looks:
                    self._told.put((name, found))
            except DdtreectlError as error:
                self._told.put((name, error))
            except BaseException as error:  # noqa: BLE001 - raised again by who asked for rounds
                self._told.put((name, error))
                return
            time.sleep(AGAIN_AFTER)
