"""`add_norm` with PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    """See `naive.add_norm`."""
    if x.ndim == 4:
        dtype = weight.dtype if residual is None else residual.dtype
        # Several parts are in float32, or wider; one is as it would be without.
        x = x[0].to(dtype) if len(x) == 1 else x.sum(0)
        total = (x if residual is None else x + residual).to(dtype)
    else:
        total = x if residual is None else x + residual
    wide = torch.float64 if total.dtype == torch.float64 else torch.float32
    factor = weight.to(wide)
    if zero_centered:
        factor = 1.0 + factor
    return F.rms_norm(total.to(wide), factor.shape, factor, eps).to(total.dtype), total
