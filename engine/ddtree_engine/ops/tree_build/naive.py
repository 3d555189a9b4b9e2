"""Specification of tree construction: list every prefix, sort, cut."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from ddtree_engine.ops.tree_build.shape import TreeShape


def tree_build(scores: Tensor, budget: int) -> TreeShape:
    """Build the tree of the `budget` best prefixes of each request.

    Exponential in L: for small sizes only.

    Args:
        scores: [B, L, K] int64 fixed-point log-probabilities of the candidates of each depth, at
            most 0 and falling along K.
        budget: nodes besides the root.
    """
    shapes = [_build_one(rows, budget) for rows in scores.tolist()]
    return TreeShape(*(torch.tensor(column) for column in zip(*shapes, strict=True)))


def _build_one(scores: list[list[int]], budget: int) -> tuple[list[int], list[int], list[int]]:
    prefixes = [
        ranks
        for depth in range(1, len(scores) + 1)
        for ranks in product(*(range(len(row)) for row in scores[:depth]))
    ]

    def place(ranks: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        return -sum(row[rank] for row, rank in zip(scores, ranks, strict=False)), ranks

    best = sorted(prefixes, key=place)[:budget]
    node_of = {ranks: node for node, ranks in enumerate([(), *best])}
    padding = budget - len(best)
    parents = [-1, *(node_of[ranks[:-1]] for ranks in best), *[0] * padding]
    depths = [0, *(len(ranks) for ranks in best), *[-1] * padding]
    last_ranks = [0, *(ranks[-1] for ranks in best), *[0] * padding]
    return parents, depths, last_ranks
