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
) -> tuple[Tensor, Tensor, Tensor]:
    """See `naive.qk_norm_rope`."""
    return (
        rotate(_norm(q, q_weight, eps, zero_centered), cos, sin),
        rotate(_norm(k, k_weight, eps, zero_centered), cos, sin),
        v.clone(memory_format=torch.contiguous_format),
    )


def _norm(x: Tensor, weight: Tensor, eps: float, zero_centered: bool) -> Tensor:
    factor = weight.float()
    if zero_centered:
        factor = 1.0 + factor
    return F.rms_norm(x.float(), factor.shape, factor, eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first `cos.shape[-1]` dimensions of `x` [B, N, heads, d]; the rest is kept."""
    size = cos.shape[-1]
    turned = x[..., :size]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    if size == x.shape[-1]:
        return turned.to(x.dtype)
    return torch.cat([turned.to(x.dtype), x[..., size:]], dim=-1)
