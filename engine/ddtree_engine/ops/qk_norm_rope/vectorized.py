"""`qk_norm_rope` with PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    *,
    zero_centered: bool,
    row_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `naive.qk_norm_rope`."""
    if row_scale is None:
        factors, values = None, v.clone(memory_format=torch.contiguous_format)
    else:
        factors = row_scale[:, :, None, None]
        values = (v * factors).to(v.dtype, memory_format=torch.contiguous_format)
    return (
        rotate(_norm(q, factors, q_weight, eps, zero_centered), cos, sin),
        rotate(_norm(k, factors, k_weight, eps, zero_centered), cos, sin),
        values,
    )


def _norm(
    x: Tensor, factors: Tensor | None, weight: Tensor, eps: float, zero_centered: bool
) -> Tensor:
    wide = x.float() if factors is None else x.float() * factors.float()
    factor = weight.float()
    if zero_centered:
        factor = 1.0 + factor
    if factor.ndim == 2:
        factor = factor.repeat_interleave(x.shape[2] // len(factor), dim=0)
        return (F.rms_norm(wide, wide.shape[-1:], None, eps) * factor).to(x.dtype)
    return F.rms_norm(wide, factor.shape, factor, eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first `cos.shape[-1]` dimensions of `x` [B, N, heads, d]; the rest is kept."""
    size = cos.shape[-1]
    turned = x[..., :size]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    if size == x.shape[-1]:
        return turned.to(x.dtype)
    return torch.cat([turned.to(x.dtype), x[..., size:]], dim=-1)
