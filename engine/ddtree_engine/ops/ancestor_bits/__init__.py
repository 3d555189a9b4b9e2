"""Whom each node of a round's trees descends from, in bits: made once, read by every layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.ancestor_bits.naive import MAX_NODES
from ddtree_engine.ops.device import on_gpu

__all__ = ["MAX_NODES", "ancestor_bits"]


def ancestor_bits(ancestors: Tensor) -> Tensor | None:
    """See `naive.ancestor_bits`. None where no kernel reads bits: PyTorch takes the mask itself."""
    if ancestors.shape[1] > MAX_NODES or not on_gpu(ancestors):
        return None
    from ddtree_engine.ops.ancestor_bits import kernel

    with torch.cuda.device(ancestors.device):
        return kernel.ancestor_bits(ancestors)
