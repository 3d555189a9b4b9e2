"""Replay of the accepted path into the committed recurrent state."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.state_commit import vectorized

__all__ = ["state_commit"]


def state_commit(
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    path_lengths: Tensor,
    state: Tensor,
    nodes: Tensor | None = None,
) -> None:
    """See `naive.state_commit`."""
    if runs_kernel(k, v, g, beta, state):
        from ddtree_engine.ops.state_commit import kernel

        if kernel.supports(k, v, g, beta, state):
            with torch.cuda.device(state.device):
                kernel.state_commit(k, v, g, beta, path_lengths, state, nodes)
            return
    vectorized.state_commit(k, v, g, beta, path_lengths, state, nodes)
