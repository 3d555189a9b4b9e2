"""The path of each draft tree that the target's choices accept, and the token after it."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import on_gpu
from ddtree_engine.ops.tree_walk import vectorized
from ddtree_engine.ops.tree_walk.result import Walk

__all__ = ["Walk", "tree_walk"]


def tree_walk(
    choices: Tensor, tokens: Tensor, parents: Tensor, sizes: Tensor, *, depth: int
) -> Walk:
    """See `naive.tree_walk`. Nothing waits for the device."""
    tensors = (choices, tokens, parents, sizes)
    if on_gpu(*tensors) and all(t.stride(-1) == 1 for t in tensors):
        from ddtree_engine.ops.tree_walk import kernel

        with torch.cuda.device(tokens.device):
            return kernel.tree_walk(*tensors, depth=depth)
    return vectorized.tree_walk(*tensors, depth=depth)
