"""`rms_norm` with PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool) -> Tensor:
    """See `naive.rms_norm`."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    factor = weight.to(wide)
    if zero_centered:
        factor = 1.0 + factor
    return F.rms_norm(x.to(wide), factor.shape, factor, eps).to(x.dtype)
