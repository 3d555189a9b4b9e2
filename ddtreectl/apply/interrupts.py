"""Ctrl-C, SIGTERM and a lost terminal: stop what is safe to stop, finish what must be finished."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Handle signals while the block runs. For the main thread only."""
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        if self._shields or self._raised:
            self._pending = name
            self._say(f"{name}: finishing first, so that the slot is left in a known state")
            return
        self._raised = True
        raise InterruptedByOperatorError(name)
