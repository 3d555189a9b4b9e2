"""The specification of `add_norm`: one row at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    """Add a block's output to the residual stream and normalise the sum.

    Args:
        x: [B, N, H] output of a block.
        residual: [B, N, H] the stream before it; None leaves `x` as it is.
        weight: [H] of the norm.
        eps: added to the mean of squares.
        zero_centered: whether the factor is `1 + weight` and not `weight`.

    Returns:
        The normalised sum and the sum, [B, N, H] each, in the dtype of `x`. The norm is that of the
        rounded sum, computed in float32 (float64 of float64).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    factor = weight.to(wide) + (1.0 if zero_centered else 0.0)
    total = x.clone()
    normed = torch.empty_like(x)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            if residual is not None:
                total[b, i] += residual[b, i]
            row = total[b, i].to(wide)
            normed[b, i] = (row / (row.square().mean() + eps).sqrt() * factor).to(x.dtype)
    return normed, total
