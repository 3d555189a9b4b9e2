"""`gated_norm` with PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, row_scale: Tensor | None = None
) -> Tensor:
    """See `naive.gated_norm`."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    normed = F.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps)
    gates = gate.to(wide)
    if row_scale is not None:
        gates = gates * row_scale[:, :, None, None]
    return (normed * F.silu(gates)).to(gate.dtype)
