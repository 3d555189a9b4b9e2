"""Convolution inputs of the accepted path into the committed tails."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.conv_commit import vectorized
from ddtree_engine.ops.device import runs_kernel

__all__ = ["conv_commit"]


def conv_commit(inputs: Tensor, nodes: Tensor, path_lengths: Tensor, tails: Tensor) -> None:
    """See `naive.conv_commit`. Nothing waits for the device."""
    if runs_kernel(inputs, tails) and nodes.stride(1) == 1:
        from ddtree_engine.ops.conv_commit import kernel

        if kernel.supports(inputs, tails):
            with torch.cuda.device(inputs.device):
                kernel.conv_commit(inputs, nodes, path_lengths, tails)
            return
    vectorized.conv_commit(inputs, nodes, path_lengths, tails)
