"""Attention of a drafter's block to the target's features and to itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.drafter_attention import vectorized

__all__ = ["drafter_attention"]


def drafter_attention(
    q: Tensor,
    k_context: Tensor,
    v_context: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> Tensor:
    """See `naive.drafter_attention`."""
    tensors = (q, k_context, v_context, lengths, k, v)
    if runs_kernel(q, k_context, v_context, k, v):
        from ddtree_engine.ops import split_kv
        from ddtree_engine.ops.drafter_attention import kernel

        if split_kv.supports(q, k_context, v_context, k, v):
            with torch.cuda.device(q.device):
                return kernel.drafter_attention(*tensors, causal=causal, window=window, scale=scale)
    return vectorized.drafter_attention(*tensors, causal=causal, window=window, scale=scale)
