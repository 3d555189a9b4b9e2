"""Waiting for what threads tell, so that signals are heard meanwhile.

Python runs signal handlers in the main thread between two of its instructions. The kernel may give
a signal to any thread, though, and then nothing wakes a main thread that waits without a limit: the
handler would run when the wait ends by itself, which may be never.
"""

import queue
import time
from typing import TypeVar

T = TypeVar("T")

HEARS_EVERY = 0.25
"""Seconds after which a signal that another thread was given is heard, at most."""


def arrival(told: "queue.Queue[T] | queue.SimpleQueue[T]", *, within: float | None = None) -> T:
    """The next thing in `told`, waited for.

    Args:
        told: what threads put things in.
        within: seconds to wait; None for as long as it takes.

    Raises:
        queue.Empty: nothing has come in time.
    """
    ends = None if within is None else time.monotonic() + within
    while True:
        left = HEARS_EVERY if ends is None else min(ends - time.monotonic(), HEARS_EVERY)
        try:
            return told.get(timeout=max(left, 0.0))
        except queue.Empty:
            if ends is not None and time.monotonic() >= ends:
                raise
