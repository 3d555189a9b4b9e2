"""Which request sits in which cache row.

Requests sit in consecutive rows, those that decode first and those whose prompt is not committed
behind them: the batch of a round is always a slice. So a request that begins to decode, or ends,
changes places with another one, with all that is kept of it: its caches, and what rounds on the
device know of it.
"""

from __future__ import annotations

import torch

from ddtree_engine.cache import DrafterCache, TargetCache
from ddtree_engine.config import DrafterConfig, TargetConfig
from ddtree_engine.device_memory import and_free
from ddtree_engine.errors import CapacityError
from ddtree_engine.memory_plan import cache_bytes, gibibytes
from ddtree_engine.row_state import RowState
from ddtree_engine.sequence import Sequence


class CacheRows:
    """The rows of one decoder, and the requests in them.

    Attributes:
        count: requests that can run at once.
        cache: of the target.
        drafter_cache: of the drafter, if there is one.
        state: what rounds on the device know of each row.
        sequences: the requests, each at the index of its row.
    """

    def __init__(
        self,
        target: TargetConfig,
        drafter: DrafterConfig | None,
        *,
        count: int,
        max_length: int,
        overrun: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Reserve the caches.

        Args:
            target: shape of the target.
            drafter: shape of the drafter, if there is one.
            count: requests that can run at once.
            max_length: tokens of one request.
            overrun: tokens that rounds may commit beyond these.
            dtype: of keys and values.
            device: where they are.

        Raises:
            CapacityError: there is not enough memory.
        """
        self.count = count
        room = max_length + overrun
        self.drafter_cache: DrafterCache | None = None
        try:
            self.cache = TargetCache(
                target, rows=count, max_length=room, dtype=dtype, device=device
            )
            if drafter is not None:
                self.drafter_cache = DrafterCache(
                    drafter, rows=count, max_length=room, dtype=dtype, device=device
                )
        except (RuntimeError, MemoryError) as error:  # PyTorch's CPU allocator raises the former
            needed = gibibytes(cache_bytes(target, drafter, count, room, dtype))
            raise CapacityError(
                f"there is no memory for the caches of {count} x {max_length} tokens: they take "
                f"{needed}{and_free(device)}",
                hint="ask for a shorter context or for fewer requests at once",
            ) from error
        self.state = RowState(count, device)
        self.sequences: list[Sequence] = []

    @property
    def caches(self) -> tuple[TargetCache | DrafterCache, ...]:
        """Those that there are."""
        both = (self.cache, self.drafter_cache)
        return tuple(one for one in both if one is not None)

    @property
    def free(self) -> int:
        """How many more requests have a row."""
        return self.count - len(self.sequences)

    @property
    def decoding(self) -> list[Sequence]:
        """The requests that decode: those of the first rows."""
        return [one for one in self.sequences if one.decoding]

    def take(self, sequence: Sequence) -> None:
        """Give a request the first free row, with nothing committed.

        Raises:
            CapacityError: no row is free.
        """
        if not self.free:
            raise CapacityError(f"all {self.count} rows are taken")
        sequence.row = len(self.sequences)
        for cache in self.caches:
            cache.reset(sequence.row)
        self.sequences.append(sequence)

    def let_decode(self, sequence: Sequence, *, budget: int, width: int) -> None:
        """Move a request whose prompt is committed behind the last one that decodes.

        Args:
            sequence: the request.
            budget: nodes of its next tree besides the root.
            width: candidates a depth that its trees look at.
        """
        self._swap(sequence.row, len(self.decoding) - 1)
        self.state.set(
            sequence.row,
            length=self.cache.lengths[sequence.row],
            anchor=sequence.anchor,
            budget=budget,
            width=width,
            sampling=sequence.sampling,
        )

    def release(self, sequence: Sequence) -> None:
        """Free the row of a request."""
        row, last = sequence.row, len(self.sequences) - 1
        if sequence.decoding:
            last_decoding = len(self.decoding) - 1
            self._swap(row, last_decoding)
            row = last_decoding
        self._swap(row, last)
        self.state.clear(last)
        self.sequences.pop()
        sequence.row = -1

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        for cache in self.caches:
            cache.swap(a, b)
        self.state.swap(a, b)
        one, other = self.sequences[a], self.sequences[b]
        self.sequences[a], self.sequences[b] = other, one
        one.row, other.row = b, a
