"""Wait for a condition instead of for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.fleet.lab.shell import LabError

T = TypeVar("T")


def until(look: Callable[[], T], what: str, deadline: float = 15.0, pause: float = 0.02) -> T:
    """Look again and again until there is something, and return it.

    Args:
        look: what to call; anything true ends the wait.
        what: the condition, for the error.
        deadline: seconds after which to give up.
        pause: seconds between two looks.

    Raises:
        LabError: it did not come true in time.
    """
    end = time.monotonic() + deadline
    while True:
        if found := look():
            return found
        if time.monotonic() > end:
            raise LabError(f"not within {deadline:g} s: {what}")
        time.sleep(pause)
