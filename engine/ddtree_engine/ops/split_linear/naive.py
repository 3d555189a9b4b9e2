"""The specification of `split_linear`: one inner product at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def split_linear(x: Tensor, weight: Tensor, *, parts: int) -> Tensor:
    """`x @ weight.T`, each inner product in parts.

    Args:
        x: [B, N, K]
        weight: [M, K]
        parts: S, of which K is a multiple.

    Returns:
        [S, B, N, M], whose sum over the first dimension is the product. Of one part in the dtype of
        `x`; of several in float32, so that the sum is rounded once.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    B, N, K = x.shape
    size = K // parts
    out = torch.empty(parts, B, N, len(weight), dtype=wide)
    for s in range(parts):
        some = slice(s * size, (s + 1) * size)
        for b in range(B):
            for n in range(N):
                for m, row in enumerate(weight):
                    out[s, b, n, m] = (x[b, n, some].to(wide) * row[some].to(wide)).sum()
    return out.to(x.dtype) if parts == 1 else out
