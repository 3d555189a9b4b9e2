"""The norm of a recurrent layer's outputs, times the SiLU of a gate."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.gated_norm import vectorized

__all__ = ["gated_norm"]


def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, row_scale: Tensor | None = None
) -> Tensor:
    """See `naive.gated_norm`."""
    if runs_kernel(x, gate, weight, row_scale):
        from ddtree_engine.ops.gated_norm import kernel

        if kernel.supports(x, gate):
            with torch.cuda.device(x.device):
                return kernel.gated_norm(x, gate, weight, eps, row_scale=row_scale)
    return vectorized.gated_norm(x, gate, weight, eps, row_scale=row_scale)
