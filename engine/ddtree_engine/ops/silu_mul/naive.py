"""The specification of `silu_mul`: one number at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def silu_mul(x: Tensor, *, row_scale: Tensor | None = None) -> Tensor:
    """SiLU of the first half of each row times its second half.

    Args:
        x: [B, N, 2*I] gates, then values.
        row_scale: [B, N] float32 (float64 of float64 inputs), factor of each row of `x`, gates and
            values; None is 1.

    Returns:
        [B, N, I] in the dtype of `x`; with a factor it is rounded to that only at the end.
    """
    B, N, twice = x.shape
    size = twice // 2
    out = torch.empty(B, N, size, dtype=x.dtype)
    for b in range(B):
        for n in range(N):
            factor = 1.0 if row_scale is None else float(row_scale[b, n])
            for i in range(size):
                gate = factor * float(x[b, n, i])
                silu = 0.0 if gate < -700 else gate / (1.0 + math.exp(-gate))
                out[b, n, i] = silu * factor * float(x[b, n, size + i])
    return out
