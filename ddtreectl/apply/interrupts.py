"""Ctrl-C, SIGTERM and a lost terminal: stop what is safe to stop, finish what must be finished."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(act: Callable[[str], None]) -> Iterator[None]:
    """Have `act` told the name of each signal that comes while the block runs; main thread only."""

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        act(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class InterruptedByOperatorError(BaseException):
    """The operator asked to stop. No handler of ordinary errors catches it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Interrupts:
    """Turns signals into one exception, and holds them back while a block must finish.

    The first signal raises; from then on the way out is cleaning up, so later ones are held back.

    Args:
        say: tells the operator that a signal was seen and has to wait.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._shields = 0
        self._raised = False
        self._pending: str | None = None
        self._asked = threading.Event()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Handle signals while the block runs. For the main thread only."""
        with handled(self._handle):
            yield

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold signals back until the block ends; raise then what came, unless one has already."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._pending and not self._shields and not self._raised:
            self._raised = True
            raise InterruptedByOperatorError(self._pending)

    def sleep(self, seconds: float) -> None:
        """Pause between two looks. A signal, or `ask_to_stop`, ends it early."""
        if self._shields or self._raised:
            time.sleep(seconds)
        elif self._asked.wait(seconds):
            self.check()

    def ask_to_stop(self, name: str) -> None:
        """Have the work of another thread end at its next `check`.

        Signals reach the main thread alone: it hands them on with this.
        """
        self._pending = self._pending or name
        self._asked.set()

    def check(self) -> None:
        """Raise what another thread has asked for, unless it must wait for a block to finish."""
        if self._asked.is_set() and self._pending and not self._shields and not self._raised:
            self._raised = True
            raise InterruptedByOperatorError(self._pending)

    def _handle(self, name: str) -> None:
        if self._shields or self._raised:
            self._pending = name
            self._say(f"{name}: finishing first, so that the slot is left in a known state")
            return
        self._raised = True
        raise InterruptedByOperatorError(name)
