"""The specification of `add_norm`: one row at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    """Add a block's output to the residual stream and normalise the sum.

    Args:
        x: [B, N, H] output of a block, or [S, B, N, H], the parts of its sum.
        residual: [B, N, H] the stream before it; None leaves `x` as it is.
        weight: [H] of the norm.
        eps: added to the mean of squares.
        zero_centered: whether the factor is `1 + weight` and not `weight`.

    Returns:
        The normalised sum and the sum, [B, N, H] each, in the dtype of `x`, of `residual` where `x`
        comes in parts, or of `weight` where there is none. The norm is that of the rounded sum,
        computed in float32 (float64 of float64).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    factor = weight.to(wide) + (1.0 if zero_centered else 0.0)
    dtype = x.dtype
    if x.ndim == 4:
        dtype = weight.dtype if residual is None else residual.dtype
    parts = x if x.ndim == 4 else x[None]
    total = torch.empty(parts.shape[1:], dtype=dtype)
    normed = torch.empty_like(total)
    for b in range(total.shape[0]):
        for i in range(total.shape[1]):
            added = torch.zeros(total.shape[2], dtype=wide)
            for part in parts:
                added += part[b, i].to(wide)
            if residual is not None:
                added += residual[b, i].to(wide)
            total[b, i] = added.to(dtype)
            row = total[b, i].to(wide)
            normed[b, i] = (row / (row.square().mean() + eps).sqrt() * factor).to(dtype)
    return normed, total
