"""The result of `draft_trees`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class DraftTrees(NamedTuple):
    """Draft trees of B requests, N nodes each: all that a verify pass and a walk need of them.

    A padding node is a leaf below the root with token 0: no other node sees it.

    Attributes:
        tokens: [B, N] int64, the anchor first.
        parents: [B, N] int64, -1 at the root, 0 at padding.
        depths: [B, N] int64, 1 at padding.
        sizes: [B] int64, nodes before the padding.
        ancestors: [B, N, N] bool, [i, j] true where j is i or an ancestor of i.
        taps: [B, N, K] int64 as `tree_conv` takes them.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    sizes: Tensor
    ancestors: Tensor
    taps: Tensor
