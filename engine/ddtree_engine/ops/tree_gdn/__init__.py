"""Gated delta rule over a tree: a node continues its parent's state, and none is ever written."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.tree_gdn import vectorized

__all__ = ["tree_gdn"]


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
