"""The specification of `gated_norm`: one head's vector at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, row_scale: Tensor | None = None
) -> Tensor:
    """Root mean square norm of each head's output, times the SiLU of its gate.

    Args:
        x: [B, N, H, d]
        gate: [B, N, H, d]
        weight: [d] of the norm, shared by the heads.
        eps: added to the mean of squares.
        row_scale: [B, N] float32 (float64 of float64 inputs), factor of each row of `gate`, which
            is a projection, and not of `x`; None is 1.

    Returns:
        [B, N, H, d] in the dtype of `gate`, computed in float32 (float64 of float64).
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    gates = gate.to(wide)
    if row_scale is not None:
        gates = gates * row_scale[:, :, None, None]
    out = [
        row / (row.square().mean() + eps).sqrt() * weight.to(wide) * g * torch.sigmoid(g)
        for row, g in zip(x.to(wide).flatten(0, 2), gates.flatten(0, 2), strict=True)
    ]
    return torch.stack(out).view(x.shape).to(gate.dtype)
