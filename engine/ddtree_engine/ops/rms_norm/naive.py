"""The specification of `rms_norm`: one row at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool) -> Tensor:
    """Divide each row by its root mean square and multiply it by the weight.

    Args:
        x: [B, N, H]
        weight: [H] of the norm.
        eps: added to the mean of squares.
        zero_centered: whether the factor is `1 + weight` and not `weight`.

    Returns:
        [B, N, H] in the dtype of `x`, computed in float32 (float64 of float64).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    factor = weight.to(wide) + (1.0 if zero_centered else 0.0)
    rows = [row / (row.square().mean() + eps).sqrt() * factor for row in x.to(wide).flatten(0, 1)]
    return torch.stack(rows).view(x.shape).to(x.dtype)
