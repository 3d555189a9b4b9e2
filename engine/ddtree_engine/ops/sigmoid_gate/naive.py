"""The specification of `sigmoid_gate`: one head's vector at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply the heads' outputs by the sigmoid of their gates.

    Args:
        x: [B, N, H, d]
        gate: [B, N, H, d]

    Returns:
        [B, N, H, d] in the dtype of `x`.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows = [
        one.to(wide) / (1.0 + torch.exp(-g.to(wide)))
        for one, g in zip(x.flatten(0, 2), gate.flatten(0, 2), strict=True)
    ]
    return torch.stack(rows).view(x.shape).to(x.dtype)
