"""The activation between the two products of a gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.silu_mul import vectorized

__all__ = ["silu_mul"]


def silu_mul(x: Tensor, *, row_scale: Tensor | None = None) -> Tensor:
    """See `naive.silu_mul`."""
    if runs_kernel(x, row_scale) and x.is_contiguous():
        from ddtree_engine.ops.silu_mul import kernel

        with torch.cuda.device(x.device):
            return kernel.silu_mul(x, row_scale=row_scale)
    return vectorized.silu_mul(x, row_scale=row_scale)
