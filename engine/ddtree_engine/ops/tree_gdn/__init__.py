"""Gated delta rule over a tree: a node continues its parent's state, and none is ever written."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.tree_gdn import vectorized

__all__ = ["tree_gdn", "tree_gdn_programs"]


def tree_gdn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    ancestors: Tensor,
    bits: Tensor | None = None,
) -> Tensor:
    """See `naive.tree_gdn`. A non-finite node reaches its descendants and no one else.

    `bits` are `ancestor_bits` of the ancestors, where a pass has made them once for all layers.
    """
    if runs_kernel(q, k, v, g, beta, state):
        from ddtree_engine.ops.tree_gdn import kernel

        if kernel.supports(q, k, v, state):
            with torch.cuda.device(q.device):
                return kernel.tree_gdn(q, k, v, g, beta, state, ancestors, bits)
    return vectorized.tree_gdn(q, k, v, g, beta, state, ancestors)


def tree_gdn_programs(x: Tensor, heads: int, value_dim: int) -> int:
    """How many programs the kernel has for nodes `x` [B, N, *]; 0 where it does not run."""
    if not runs_kernel(x):
        return 0
    from ddtree_engine.ops.tree_gdn.tiling import PRECISIONS, choose_tiling

    tiling = choose_tiling(x.shape[1], value_dim, PRECISIONS[x.dtype])
    return -(-value_dim // tiling.values) * heads * x.shape[0]
