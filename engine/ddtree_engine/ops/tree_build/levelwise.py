"""Tree construction level by level: sorts and gathers of fixed shape, no host synchronisation.

The `budget` best prefixes of depth d extend prefixes that are among the `budget` best of depth
d - 1: whatever comes before a prefix comes, extended by the same rank, before its extension.
So each level keeps its `budget` best, and the tree is the `budget` best of all levels together.

Ties need the lexicographic order of rank tuples. Within a level, a frontier kept in lexicographic
order makes (place of the parent, rank) the place of the child, and a stable sort by score does
the rest. Across levels, the tuples are compared as packed keys: one digit a rank, 0 past the end.
Equal keys are a prefix and its extensions by rank 0; stable sorts leave them in order of depth.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ddtree_engine.ops.tree_build.shape import TreeShape
from ddtree_engine.tree import MAX_DEPTH

_KEY_BITS = 62
_NO_PREFIX = -(2**63)
"""Below every score: that of a rank which a request does not look at, and of what extends it."""


class _Prefixes(NamedTuple):
    """Some prefixes of each request, n of them."""

    score: Tensor  # [B, n]
    parent: Tensor  # [B, n], index among all prefixes kept, the root being 0
    depth: Tensor  # [B, n]
    rank: Tensor  # [B, n]
    keys: Tensor  # [B, n, words], the whole rank tuple: words compare from the first to the last


def tree_build(scores: Tensor, budget: int, widths: Tensor | None = None) -> TreeShape:
    """Build the tree of the `budget` best prefixes of each request.

    Args:
        scores: [B, L, K] int64 fixed-point log-probabilities of the candidates of each depth, at
            most 0 and falling along K (see `ddtree_engine.tree.fixed_point`).
        budget: nodes besides the root.
        widths: [B] candidates a depth that each request looks at; all by default.

    Raises:
        ValueError: a negative budget, or L above `MAX_DEPTH`, where sums could leave 64 bits.
    """
    if budget < 0:
        raise ValueError(f"a budget is 0 or more, got {budget}")
    if scores.shape[1] > MAX_DEPTH:
        raise ValueError(f"a tree is at most {MAX_DEPTH} deep, got {scores.shape[1]}")
    levels = _levels(scores[:, :, :budget], budget, widths)
    kept = _Prefixes(*(torch.cat(columns, dim=1) for columns in zip(*levels, strict=True)))

    order = _lexicographic_order(kept.keys)
    falling = kept.score.gather(1, order).sort(dim=1, descending=True, stable=True).indices
    order = order.gather(1, falling)
    nodes = torch.arange(order.shape[1], device=order.device).expand_as(order)
    node_of = torch.empty_like(order).scatter_(1, order, nodes)

    order = order[:, : budget + 1]
    padding = (0, budget + 1 - order.shape[1])
    none = kept.score.gather(1, order) == _NO_PREFIX
    parents = node_of.gather(1, kept.parent.gather(1, order)).masked_fill(none, 0)
    parents = functional.pad(parents, padding)
    parents[:, 0] = -1
    depths = kept.depth.gather(1, order).masked_fill(none, -1)
    ranks = kept.rank.gather(1, order).masked_fill(none, 0)
    return TreeShape(
        parents, functional.pad(depths, padding, value=-1), functional.pad(ranks, padding)
    )


def _levels(scores: Tensor, budget: int, widths: Tensor | None) -> list[_Prefixes]:
    """Return the `budget` best prefixes of each depth, in lexicographic order; the root first."""
    batch, depth_limit, width = scores.shape
    digit_bits = max((width - 1).bit_length(), 1)
    digits = _KEY_BITS // digit_bits
    zero = scores.new_zeros((batch, 1))
    words = max(-(-depth_limit // digits), 1)
    level = _Prefixes(zero, zero, zero, zero, scores.new_zeros((batch, 1, words)))
    levels = [level]
    if width == 0:
        return levels
    start = 0
    unseen = torch.zeros((), dtype=torch.bool, device=scores.device)
    if widths is not None:
        unseen = torch.arange(width, device=scores.device) >= widths[:, None, None]
    for depth in range(1, depth_limit + 1):
        grown = level.score[:, :, None]
        none = unseen | (grown == _NO_PREFIX)
        grown = grown.masked_fill(grown == _NO_PREFIX, 0) + scores[:, depth - 1, None, :]
        candidates = grown.masked_fill(none, _NO_PREFIX).flatten(1)
        best = candidates.sort(dim=1, descending=True, stable=True).indices[:, :budget]
        best = best.sort(dim=1).values
        parent, rank = best // width, best % width
        word, digit = divmod(depth - 1, digits)
        keys = level.keys.gather(1, parent[:, :, None].expand(-1, -1, words))
        keys[:, :, word] += rank << (digit_bits * (digits - 1 - digit))
        parent, start = parent + start, start + level.score.shape[1]
        level = _Prefixes(
            candidates.gather(1, best), parent, torch.full_like(rank, depth), rank, keys
        )
        levels.append(level)
    return levels


def _lexicographic_order(keys: Tensor) -> Tensor:
    """Return [B, n] indices that sort keys [B, n, words] by the first word, then the second."""
    order = torch.arange(keys.shape[1], device=keys.device).expand(keys.shape[:2])
    for word in reversed(keys.unbind(2)):
        order = order.gather(1, word.gather(1, order).argsort(dim=1, stable=True))
    return order
