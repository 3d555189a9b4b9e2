"""Replay of the accepted path into the recurrent state, from the inputs of the convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.gdn_commit import vectorized

__all__ = ["gdn_commit"]


def gdn_commit(
    inputs: Tensor,
    tails: Tensor,
    weight: Tensor,
    g: Tensor,
    beta: Tensor,
    nodes: Tensor,
    path_lengths: Tensor,
    state: Tensor,
    *,
    key_heads: int,
    eps: float,
) -> None:
    """See `naive.gdn_commit`. Nothing waits for the device."""
    tensors = (inputs, tails, weight, g, beta, nodes, path_lengths, state)
    if runs_kernel(inputs, tails, weight, g, beta, state):
        from ddtree_engine.ops.gdn_commit import kernel

        if kernel.supports(inputs, tails, nodes, state):
            with torch.cuda.device(state.device):
                kernel.gdn_commit(*tensors, key_heads=key_heads, eps=eps)
            return
    vectorized.gdn_commit(*tensors, key_heads=key_heads, eps=eps)
