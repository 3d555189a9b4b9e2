"""The root mean square norm of rows, weighted."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.rms_norm import vectorized

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool) -> Tensor:
    """See `naive.rms_norm`."""
    if runs_kernel(x, weight):
        from ddtree_engine.ops.rms_norm import kernel

        if kernel.supports(x):
            with torch.cuda.device(x.device):
                return kernel.rms_norm(x, weight, eps, zero_centered=zero_centered)
    return vectorized.rms_norm(x, weight, eps, zero_centered=zero_centered)
