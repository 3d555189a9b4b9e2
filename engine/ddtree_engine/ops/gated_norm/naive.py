"""The specification of `gated_norm`: one head's vector at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm of each head's output, times the SiLU of its gate.

    Args:
        x: [B, N, H, d]
        gate: [B, N, H, d]
        weight: [d] of the norm, shared by the heads.
        eps: added to the mean of squares.

    Returns:
        [B, N, H, d] in the dtype of `gate`, computed in float32 (float64 of float64).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows, gates = x.to(wide).flatten(0, 2), gate.to(wide).flatten(0, 2)
    out = [
        row / (row.square().mean() + eps).sqrt() * weight.to(wide) * g * torch.sigmoid(g)
        for row, g in zip(rows, gates, strict=True)
    ]
    return torch.stack(out).view(x.shape).to(gate.dtype)
