"""What a root mean square norm divides each row by, for whoever takes a product of the row."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.inverse_rms import vectorized

__all__ = ["inverse_rms_into"]


def inverse_rms_into(out: Tensor, x: Tensor, eps: float) -> None:
    """Write `naive.inverse_rms` of `x` to `out` [B, N], contiguous, float32 or wider."""
    if runs_kernel(x):
        from ddtree_engine.ops.inverse_rms import kernel

        if kernel.supports(x):
            with torch.cuda.device(x.device):
                kernel.inverse_rms_into(out, x, eps)
            return
    out.copy_(vectorized.inverse_rms(x, eps))
