"""The bodies that clients are sending, which a server that ends waits for no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class OpenBodies:
    """Waits for parts of bodies, in one event loop.

    Attributes:
        given_up: whether nothing is waited for any more.
    """

    def __init__(self) -> None:
        self._waits: set[asyncio.Timeout] = set()
        self.given_up = False

    @contextmanager
    def waiting(self, wait: asyncio.Timeout) -> Iterator[None]:
        """A part is waited for meanwhile; `wait` ends at once when bodies are given up."""
        self._waits.add(wait)
        if self.given_up:
            self._end(wait)
        try:
            yield
        finally:
            self._waits.discard(wait)

    def give_up(self) -> None:
        """End all waits, those that begin later too."""
        self.given_up = True
        for wait in self._waits:
            self._end(wait)

    @staticmethod
    def _end(wait: asyncio.Timeout) -> None:
        wait.reschedule(asyncio.get_running_loop().time())
