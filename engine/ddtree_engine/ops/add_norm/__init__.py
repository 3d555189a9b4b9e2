"""The end of one residual block and the norm that opens the next, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.add_norm import vectorized
from ddtree_engine.ops.device import runs_kernel

__all__ = ["add_norm"]


def add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    """See `naive.add_norm`."""
    tensors = (x, weight) if residual is None else (x, residual, weight)
    if runs_kernel(*tensors):
        from ddtree_engine.ops.add_norm import kernel

        if kernel.supports(x, residual):
            with torch.cuda.device(x.device):
                return kernel.add_norm(x, residual, weight, eps, zero_centered=zero_centered)
    return vectorized.add_norm(x, residual, weight, eps, zero_centered=zero_centered)
