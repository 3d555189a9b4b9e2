"""Draft trees: what they are, how the best one is built, and how a target walks them.

A draft tree holds the continuations that one verification pass checks. Node 0 is the *anchor*, the
last known token; the other nodes are drafted tokens. Autoregressive decoding is a tree of one
node, linear speculation a chain, and tree speculation the best-first tree built here.

**Scores.** The drafter gives every depth its own distribution, so a prefix has the probability
q(u) = product of its tokens' probabilities. Scores are log-probabilities in fixed point: an `int`
counts units of 2**-44 nat (`SCORE_BITS`). Integer sums are exact, hence independent of the order of
additions: ties are exact ties, and a heap on the CPU and a level-wise search on a GPU agree bit
for bit.

**Order.** Prefixes are ordered by falling score; equal scores by the tuple of their ranks, in
lexicographic order (a prefix comes before its extensions). The *rank* of a token is its place among
the candidates of its depth. A parent and an earlier sibling always come first, so the order is
topological, and the tree of a smaller budget is a prefix of the tree of a larger one.

**Optimality.** The `budget` first prefixes in this order form a tree and maximise the sum of q(u),
the expected number of accepted drafts if the drafter's distribution were the target's:
Ringel and Romano, "Accelerating Speculative Decoding with Block Diffusion Draft Trees",
arXiv:2604.12989, propositions 1 to 3; `best_first` gives the result of their algorithm 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddtree_engine.errors import EngineError

SCORE_BITS = 44
"""Fraction bits of a score. A float32 of magnitude 2**-21 or more is represented exactly."""

LOG_PROB_FLOOR = -(2.0**13)
"""Log-probabilities below this many nats (and -inf) count as this: no token is impossible."""

MAX_DEPTH = 63
"""Deepest tree whose scores fit 64 bits: 63 * 2**13 nats * 2**44 units a nat < 2**63."""

MAX_BUDGET = 1024
"""Most nodes besides the root that a request may ask for: more have never paid for themselves."""

MAX_TOPK = 128
"""Most candidates a depth that a request may ask for."""


def fixed_point(log_probs: NDArray[np.floating]) -> NDArray[np.int64]:
    """Convert log-probabilities in nats to scores.

    Args:
        log_probs: any shape. Values are clipped to [`LOG_PROB_FLOOR`, 0] (a log-softmax may exceed
            0 by a rounding error) and rounded to the nearest unit of 2**-44 nat.

    Raises:
        EngineError: a value is NaN.
    """
    if np.isnan(log_probs).any():
        raise EngineError(
            "the drafter's scores contain NaN",
            hint="look for non-finite weights in the drafter, or features outside its number range",
        )
    clipped = np.clip(log_probs.astype(np.float64), LOG_PROB_FLOOR, 0.0)
    return np.rint(np.ldexp(clipped, SCORE_BITS)).astype(np.int64)


@dataclass(frozen=True)
class DraftTree:
    """Tokens to verify in one pass, N nodes in topological order.

    Attributes:
        tokens: [N] token ids; `tokens[0]` is the anchor.
        parents: [N] node indices; `parents[0]` is -1 and `parents[i] < i`.

    Raises:
        ValueError: no node, lengths that differ, an order that is not topological, or two siblings
            with the same token (a walk could not tell them apart).
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or not self.tokens:
            raise ValueError(
                f"a tree needs one parent for each of its tokens and at least one node, "
                f"got {len(self.tokens)} tokens and {len(self.parents)} parents"
            )
        if self.parents[0] != -1:
            raise ValueError(f"node 0 is the root and its parent is -1, got {self.parents[0]}")
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node:
                raise ValueError(
                    f"node {node} has parent {parent}; a parent comes before its children"
                )
        if len(self.children) != self.budget:
            raise ValueError("two siblings have the same token")

    @property
    def budget(self) -> int:
        """Number of nodes besides the root; `budget + 1` tokens are verified."""
        return len(self.tokens) - 1

    @cached_property
    def children(self) -> dict[tuple[int, int], int]:
        """Map from (node, token) to the child of `node` that carries `token`."""
        edges = zip(self.parents[1:], self.tokens[1:], strict=True)
        return {edge: node for node, edge in enumerate(edges, start=1)}

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """[N] distance to the root; node i sits at absolute position anchor + `depths[i]`."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    def prefix(self, budget: int) -> DraftTree:
        """Return the tree of the first `budget` nodes besides the root (all, if there are fewer).

        Of a best-first tree this is the best-first tree of that budget.

        Raises:
            ValueError: `budget` is negative.
        """
        _check_budget(budget)
        return DraftTree(self.tokens[: budget + 1], self.parents[: budget + 1])

    def ancestors(self) -> NDArray[np.bool_]:
        """Return [N, N]: entry (i, j) is true where j is i or an ancestor of i."""
        mask = np.eye(len(self.tokens), dtype=np.bool_)
        for node, parent in enumerate(self.parents[1:], start=1):
            mask[node, : parent + 1] |= mask[parent, : parent + 1]
        return mask


def chain(anchor: int, drafts: Sequence[int]) -> DraftTree:
    """Return the tree without branches: the anchor, then each draft below the one before it."""
    return DraftTree((anchor, *drafts), tuple(range(-1, len(drafts))))


def best_first(
    anchor: int,
    scores: Sequence[Sequence[int]],
    token_ids: Sequence[Sequence[int]],
    budget: int,
) -> DraftTree:
    """Build the tree of the `budget` best prefixes in the order of this module.

    A heap holds the frontier. The best prefix becomes a node; its next sibling (same prefix, next
    rank) and its first child enter the heap. Every prefix enters once, after all that precede it,
    so nodes come out in order: O(budget log budget), at most 2 * budget pushes.

    Args:
        anchor: token id of the root.
        scores: [L][K] fixed-point log-probabilities of the K candidates of each depth, falling
            within a depth (see `fixed_point`). Plain ints: numpy integers would be slow and wrap.
        token_ids: [L][K] the candidates' token ids, distinct within a depth.
        budget: nodes besides the root. Where fewer prefixes exist the tree holds them all.

    Raises:
        ValueError: a negative budget, shapes that differ, a score above 0 or rising within a depth,
            or a token twice within a depth (where the tree would hold both).
    """
    _check_budget(budget)
    widths = [len(row) for row in scores]
    if widths != [len(row) for row in token_ids]:
        raise ValueError("scores and token_ids differ in shape")
    tokens, parents = [anchor], [-1]
    # An entry is (-score, ranks, parent node); ranks are unique, so the parent is never compared.
    heap: list[tuple[int, tuple[int, ...], int]] = []

    def push(cost: int, ranks: tuple[int, ...], parent: int, step: int) -> None:
        if step < 0:
            raise ValueError("scores must not be above 0 and must fall within a depth")
        heapq.heappush(heap, (cost + step, ranks, parent))

    if widths and widths[0]:
        push(0, (0,), 0, -scores[0][0])
    while heap and len(tokens) <= budget:
        cost, ranks, parent = heapq.heappop(heap)
        node, depth, rank = len(tokens), len(ranks), ranks[-1]
        row = scores[depth - 1]
        tokens.append(token_ids[depth - 1][rank])
        parents.append(parent)
        if rank + 1 < widths[depth - 1]:
            push(cost, (*ranks[:-1], rank + 1), parent, row[rank] - row[rank + 1])
        if depth < len(widths) and widths[depth]:
            push(cost, (*ranks, 0), node, -scores[depth][0])
    return DraftTree(tuple(tokens), tuple(parents))


def walk(tree: DraftTree, choose: Callable[[int], int]) -> tuple[list[int], int]:
    """Follow the target's choices down the tree.

    Args:
        tree: the verified tree.
        choose: the token that the target picks after a node. Called once for each node of the
            accepted path, in order, and for no other.

    Returns:
        The accepted path as node indices, starting with the root, and the bonus token: the target's
        choice after the last node of the path. The round emits the path's tokens after the root,
        then the bonus.
    """
    path = [0]
    while True:
        token = choose(path[-1])
        child = tree.children.get((path[-1], token))
        if child is None:
            return path, token
        path.append(child)


def _check_budget(budget: int) -> None:
    if budget < 0:
        raise ValueError(f"a budget is 0 or more, got {budget}")
