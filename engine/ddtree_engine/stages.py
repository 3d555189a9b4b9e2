"""Where the decode loop spends the time that the host sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

Stage = Literal["prefill", "draft", "build", "verify", "accept", "commit", "round"]
"""Parts of the loop; a round on the device has no parts that the host could time."""
STAGES: tuple[Stage, ...] = ("prefill", "draft", "build", "verify", "accept", "commit", "round")


class StageClock:
    """Host time by stage.

    On a GPU, work that a stage only launches is waited for in the next one that reads a result: the
    drafter's in `draft`, the target's in `accept`.

    Attributes:
        seconds: spent since the clock was made or reset.
    """

    def __init__(self) -> None:
        self.seconds: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)

    def reset(self) -> None:
        """Begin at 0 again."""
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Add what passes meanwhile to a stage."""
        begin = perf_counter()
        yield
        self.seconds[stage] += perf_counter() - begin
