"""Attention of tree nodes to the committed prefix and to their own ancestors."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.tree_attention import vectorized

__all__ = ["tree_attention"]


def tree_attention(
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    ancestors: Tensor,
    scale: float,
    gate: Tensor | None = None,
    *,
    row_scale: Tensor | None = None,
) -> Tensor:
    """See `naive.tree_attention`. A non-finite node reaches its descendants and no one else."""
    if runs_kernel(q, k_prefix, v_prefix, k, v, row_scale):
        from ddtree_engine.ops import split_kv
        from ddtree_engine.ops.tree_attention import kernel

        tensors = (q, k_prefix, v_prefix, k, v)
        if split_kv.supports(*tensors, *(() if gate is None else (gate,))):
            with torch.cuda.device(q.device):
                return kernel.tree_attention(
                    *(q, k_prefix, v_prefix, lengths, k, v, ancestors, scale, gate),
                    row_scale=row_scale,
                )
    return vectorized.tree_attention(
        q, k_prefix, v_prefix, lengths, k, v, ancestors, scale, gate, row_scale=row_scale
    )
