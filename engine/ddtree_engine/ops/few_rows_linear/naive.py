"""The specification of `few_rows_linear`: one inner product at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def few_rows_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`.

    Args:
        x: [B, N, K]
        weight: [M, K]

    Returns:
        [B, N, M] in the dtype of `x`, summed in float32 (float64 of float64).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows = [
        torch.stack([(row.to(wide) * one.to(wide)).sum() for one in weight])
        for row in x.flatten(0, 1)
    ]
    return torch.stack(rows).view(*x.shape[:2], -1).to(x.dtype)
