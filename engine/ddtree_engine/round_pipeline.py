"""Rounds in flight: launched one after the other on the device, read one round late.

On a GPU a round is a CUDA graph, captured when its shape first comes up. Its result goes to pinned
memory behind an event, and the next round is launched before the host looks at it, so the device
never waits for the host. The price is one round of overrun for a request that has ended, whose
tokens nobody reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ddtree_engine.captured_graph import CapturedGraph
from ddtree_engine.device_round import DeviceRound
from ddtree_engine.round_shapes import RoundShape
from ddtree_engine.row_state import RowState
from ddtree_engine.sequence import Sequence

DEPTH = 2
"""Rounds that may be in flight: one that runs and one behind it."""

MAX_GRAPHS = 64
"""Shapes that are kept; past it the one used least recently goes."""


class Read(NamedTuple):
    """What a round gave one request.

    Attributes:
        sequence: the request.
        tokens: it accepted, the bonus last.
        sound: whether its numbers were finite.
        path: nodes of its tree that it accepted, the root first.
        budget: nodes that its tree could have besides the root.
    """

    sequence: Sequence
    tokens: list[int]
    sound: bool
    path: list[int]
    budget: int


@dataclass(frozen=True, slots=True)
class _InFlight:
    sequences: list[Sequence]
    result: Tensor
    done: torch.Event | None


class RoundPipeline:
    """The rounds in flight of one decoder."""

    def __init__(self, make: Callable[[RoundShape], DeviceRound], state: RowState) -> None:
        """Start with nothing in flight.

        Args:
            make: a round of a shape, over the decoder's caches.
            state: what rounds read and advance.
        """
        self._make, self._state = make, state
        self._rounds: dict[RoundShape, Callable[[], Tensor]] = {}
        self._flying: deque[_InFlight] = deque()
        self._device = state.lengths.device
        self._pool = torch.cuda.graph_pool_handle() if state.lengths.is_cuda else None

    def __len__(self) -> int:
        """How many rounds are in flight."""
        return len(self._flying)

    @property
    def shapes(self) -> list[RoundShape]:
        """What is captured, the one used last at the end."""
        return list(self._rounds)

    def prepare(self, shape: RoundShape) -> Callable[[], Tensor]:
        """Return the round of a shape, captured if it was not.

        Raises:
            torch.OutOfMemoryError: there is no memory for it, not even alone.
        """
        found = self._rounds.pop(shape, None)
        if found is None:
            try:
                found = self._build(shape)
            except torch.OutOfMemoryError:
                # The others can be captured anew when they come up again.
                self._rounds.clear()
                if self._pool is not None:
                    torch.cuda.synchronize(self._device)
                    torch.cuda.empty_cache()
                found = self._build(shape)
            while len(self._rounds) >= MAX_GRAPHS:
                del self._rounds[next(iter(self._rounds))]
        self._rounds[shape] = found
        return found

    def _build(self, shape: RoundShape) -> Callable[[], Tensor]:
        steps = self._make(shape)
        if self._pool is None:
            return steps
        # Compiles what it launches.
        with self._state.paused():
            steps()
            steps()
        return CapturedGraph(steps, self._device, self._pool)

    def launch(self, shape: RoundShape, sequences: list[Sequence]) -> None:
        """Launch a round for `sequences`, which sit in the first rows; waits for nothing."""
        result = self.prepare(shape)()
        done = None
        if self._pool is not None:
            pinned = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            with torch.cuda.device(self._device):
                result = pinned.copy_(result, non_blocking=True)
                done = torch.Event("cuda")
                done.record()
        self._flying.append(_InFlight(list(sequences), result, done))

    def read(self) -> list[Read]:
        """Wait for the oldest round in flight; what it gave to each request of it."""
        oldest = self._flying.popleft()
        if oldest.done is not None:
            oldest.done.synchronize()
        reads = []
        steps = (oldest.result.shape[1] - 3) // 2
        for one, row in zip(oldest.sequences, oldest.result.tolist(), strict=False):
            count, sound, *rest, budget = row
            emitted, path = rest[:count], rest[steps : steps + count]
            reads.append(Read(one, emitted, bool(sound), path, budget))
        return reads
