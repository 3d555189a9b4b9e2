"""`gdn_inputs` with PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ddtree_engine.ops.gdn_inputs.result import GdnInputs
from ddtree_engine.ops.tree_conv import vectorized


def gdn_inputs(
    x: Tensor,
    tail: Tensor,
    taps: Tensor,
    weight: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    key_heads: int,
    key_dim: int,
    eps: float,
    kept: Tensor | None = None,
    row_scale: Tensor | None = None,
) -> GdnInputs:
    """See `naive.gdn_inputs`."""
    if row_scale is not None:
        factor = row_scale[:, :, None]
        x, a, b = (x * factor).to(x.dtype), a * factor, b * factor
    if kept is not None:
        kept.copy_(x)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mixed = vectorized.tree_conv(x, tail, taps, weight).to(wide)
    keys = key_heads * key_dim
    q, k, v = torch.split(mixed, [keys, keys, mixed.shape[2] - 2 * keys], dim=-1)
    B, N, _ = mixed.shape

    def normalised(heads: Tensor) -> Tensor:
        heads = heads.view(B, N, key_heads, key_dim)
        return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + eps)

    g = -A_log.to(wide).exp() * F.softplus(a.to(wide) + dt_bias.to(wide))
    return GdnInputs(
        (normalised(q) * key_dim**-0.5).to(x.dtype),
        normalised(k).to(x.dtype),
        v.reshape(B, N, A_log.shape[0], -1).to(x.dtype),
        g,
        torch.sigmoid(b.to(wide)),
    )
