"""The specification of `tree_conv`: one node, one channel, one tap at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def tree_conv(x: Tensor, tail: Tensor, taps: Tensor, weight: Tensor) -> Tensor:
    """Depthwise causal convolution over each node's own path, then SiLU.

    Args:
        x: [B, N, C] inputs of the nodes.
        tail: [B, K-1, C] the last committed inputs, oldest first.
        taps: [B, N, K] int64, oldest first: rows of `cat(tail, x)` that node i looks at; the last
            is i itself (row K-1+i), the one before it its parent, and so on back into the tail.
        weight: [C, K] one filter a channel, oldest tap first, no bias.

    Returns:
        [B, N, C]
    """
    B, N, C = x.shape
    K = weight.shape[1]
    out = torch.empty_like(x)
    for b in range(B):
        for i in range(N):
            for c in range(C):
                total = 0.0
                for j in range(K):
                    row = int(taps[b, i, j])
                    source = tail[b, row, c] if row < K - 1 else x[b, row - (K - 1), c]
                    total += float(source) * float(weight[c, j])
                out[b, i, c] = 0.0 if total < -700 else total / (1.0 + math.exp(-total))
    return out
