"""The token that each request chooses after every node of its tree."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.choose_nodes import vectorized
from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.sampling import SamplingTensors

__all__ = ["choose_nodes"]


def choose_nodes(
    logits: Tensor,
    depths: Tensor,
    starts: Tensor,
    params: SamplingTensors,
    *,
    depth: int,
    filters: bool,
) -> Tensor:
    """See `naive.choose_nodes`. Nothing waits for the device."""
    if runs_kernel(logits):
        from ddtree_engine.ops.choose_nodes import kernel

        if kernel.supports(logits, filters=filters):
            with torch.cuda.device(logits.device):
                return kernel.choose_nodes(
                    logits, depths, starts, params, depth=depth, filters=filters
                )
    return vectorized.choose_nodes(logits, depths, starts, params, depth=depth, filters=filters)
