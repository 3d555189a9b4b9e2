"""The specification of `sigmoid_gate`: one head's vector at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid_gate(x: Tensor, gate: Tensor, *, row_scale: Tensor | None = None) -> Tensor:
    """Multiply the heads' outputs by the sigmoid of their gates.

    Args:
        x: [B, N, H, d]
        gate: [B, N, H, d]
        row_scale: [B, N] float32 (float64 of float64 inputs), factor of each row of `gate`; None
            is 1.

    Returns:
        [B, N, H, d] in the dtype of `x`.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    gates = gate.to(wide)
    if row_scale is not None:
        gates = gates * row_scale[:, :, None, None]
    rows = [
        one.to(wide) / (1.0 + torch.exp(-g))
        for one, g in zip(x.flatten(0, 2), gates.flatten(0, 2), strict=True)
    ]
    return torch.stack(rows).view(x.shape).to(x.dtype)
