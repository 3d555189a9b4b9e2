"""Causal convolution whose taps are a node's ancestors."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.tree_conv import vectorized

__all__ = ["tree_conv"]


def tree_conv(x: Tensor, tail: Tensor, taps: Tensor, weight: Tensor) -> Tensor:
    """See `naive.tree_conv`."""
    if runs_kernel(x, tail, weight):
        from ddtree_engine.ops.tree_conv import kernel

        if kernel.supports(x, tail):
            with torch.cuda.device(x.device):
                return kernel.tree_conv(x, tail, taps, weight)
    return vectorized.tree_conv(x, tail, taps, weight)
