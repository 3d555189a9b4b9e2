"""The specification of `inverse_rms`: one row at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """One over the root mean square of each row.

    Args:
        x: [B, N, H]
        eps: added to the mean of squares.

    Returns:
        [B, N] float32 (float64 of float64).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows = [1.0 / (row.square().mean() + eps).sqrt() for row in x.to(wide).flatten(0, 1)]
    return torch.stack(rows).view(x.shape[:2])
