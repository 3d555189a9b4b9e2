"""The shape of a round: all that its CUDA graph is fixed by.

A round serves requests that differ in length, tree and sampling; its shape has room for the
largest of each. Each shape costs a capture, and requests may ask for any: so sizes go up to the
next of a few.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ddtree_engine.sequence import Mode, Sequence

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batch sizes that rounds are captured for."""

CONTEXTS = (2048, 8192, 32768, 131072)
"""Lengths up to which rounds are captured, besides the caches': attention is cut by them."""

BUDGETS = (1, 3, 7, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024)
"""Budgets that rounds of a server are captured for, besides its own: users' and full tiles."""

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Candidates a depth that they are captured for."""


@dataclass(frozen=True, slots=True)
class RoundShape:
    """All that the shapes of a round depend on.

    Attributes:
        rows: B, the requests that it has room for: rows 0 to B-1 of the caches.
        context: cache rows of each request that it looks at.
        budget: nodes besides the root of the largest tree.
        width: most candidates a depth; 0 drafts nothing.
        sampled: whether any request draws its tokens; if none does, no noise is made.
        filters: whether any has a top-k or a top-p.
    """

    rows: int
    context: int
    budget: int = 0
    width: int = 0
    sampled: bool = False
    filters: bool = False


def bucket(count: int, rows: int) -> int:
    """Return the smallest batch size of a round that holds `count` requests of `rows` rows."""
    return min(rows, next((size for size in BUCKETS if size >= count), rows))


def context_bucket(longest: int, room: int) -> int:
    """Return the smallest length of a round that holds `longest` tokens; `room` in the caches."""
    return min(room, next((size for size in CONTEXTS if size >= longest), room))


def next_larger(wanted: int, sizes: Iterable[int], most: int) -> int:
    """Return the smallest of `sizes` that holds `wanted`, and no more than `most`; 0 stays 0."""
    if not wanted:
        return 0
    return min((size for size in sizes if wanted <= size < most), default=most)


class RoundShapes:
    """The shapes of one decoder's rounds."""

    def __init__(self, *, rows: int, room: int, chain: int, vocab_size: int) -> None:
        """Allow any shape.

        Args:
            rows: requests that can run at once.
            room: tokens that a cache row has place for.
            chain: nodes of the drafter's chain besides the root; 0 without a drafter.
            vocab_size: the most candidates that a depth can have.
        """
        self._rows, self._room, self._chain, self._vocab_size = rows, room, chain, vocab_size
        self._largest: RoundShape | None = None

    def nodes(self, one: Sequence) -> int:
        """How many nodes besides the root the next tree of a request can have."""
        if one.speculation.mode is Mode.TREE:
            return one.budget
        return self._chain if one.speculation.drafts else 0

    def candidates(self, one: Sequence) -> int:
        """How many candidates a depth its trees look at."""
        return min(one.speculation.candidates, self._vocab_size)

    def largest(self, *, budget: int, topk: int) -> RoundShape:
        """The shape that has room for all requests of at most this budget and top-k."""
        return RoundShape(
            rows=self._rows,
            context=self._room,
            budget=max(budget, self._chain) if self._chain else 0,
            width=min(topk, self._vocab_size) if self._chain else 0,
            sampled=True,
            filters=True,
        )

    def settle(self, largest: RoundShape) -> None:
        """Allow a few shapes from now on, and none with more nodes than `largest`."""
        self._largest = largest

    def of(self, running: SequenceOf[Sequence], longest: int) -> RoundShape:
        """The shape of the round that serves requests with at most `longest` tokens."""
        sampling = [one.sampling for one in running if not one.sampling.greedy]
        drafting = [one for one in running if one.speculation.drafts]
        budget = max((self.nodes(one) for one in drafting), default=0)
        width = max((self.candidates(one) for one in drafting), default=0)
        if self._largest is not None:
            budget = next_larger(budget, (*BUDGETS, self._chain), self._largest.budget)
            width = next_larger(width, WIDTHS, self._vocab_size)
        return RoundShape(
            rows=bucket(len(running), self._rows),
            context=context_bucket(longest, self._room),
            budget=budget,
            width=width,
            sampled=bool(sampling),
            filters=any(one.filters for one in sampling),
        )
