"""The result of tree construction: the shape of each request's tree."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class TreeShape(NamedTuple):
    """Trees of B requests, N = budget + 1 nodes each, the root first.

    Where a request has fewer prefixes than its budget, the last nodes are padding with parent 0,
    rank 0 and depth -1.

    Attributes:
        parents: [B, N] int64, index of the parent; -1 at the root.
        depths: [B, N] int64, distance to the root.
        ranks: [B, N] int64, place of the node's token among the candidates of its depth; 0 at the
            root.
    """

    parents: Tensor
    depths: Tensor
    ranks: Tensor
