"""The specification of `silu_mul`: one number at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def silu_mul(x: Tensor) -> Tensor:
    """SiLU of the first half of each row times its second half.

    Args:
        x: [B, N, 2*I] gates, then values.

    Returns:
        [B, N, I] in the dtype of `x`.
    """
    B, N, twice = x.shape
    size = twice // 2
    out = torch.empty(B, N, size, dtype=x.dtype)
    for b in range(B):
        for n in range(N):
            for i in range(size):
                gate = float(x[b, n, i])
                silu = gate / (1.0 + math.exp(-gate)) if gate > -700 else 0.0
                out[b, n, i] = silu * float(x[b, n, size + i])
    return out
