"""The specification of `gdn_inputs`: the convolution's plain loop, then one head at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ddtree_engine.ops.gdn_inputs.result import GdnInputs
from ddtree_engine.ops.tree_conv import naive


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
    """What `tree_gdn` takes, from the projections of a recurrent layer (arXiv 2412.06464).

    Args:
        x: [B, N, C] queries, keys and values side by side, before the convolution.
        tail: [B, K-1, C] as in `tree_conv`.
        taps: [B, N, K] as in `tree_conv`.
        weight: [C, K] as in `tree_conv`.
        a: [B, N, HV] projections that set the decays.
        b: [B, N, HV] projections that set the write strengths.
        A_log: [HV]
        dt_bias: [HV]
        key_heads: heads of the queries and of the keys, of
        key_dim: channels each; the values have the rest.
        eps: added to a sum of squares before its root.
        kept: [B, N, C] that gets a copy of `x`, which may be a slice of more than is wanted later.
        row_scale: [B, N] float32 (float64 of float64 inputs), factor of each row of `x`, `a` and
            `b`; None is 1. `x` is rounded to its dtype after it, for the convolution and for `kept`
            alike: a node's children see the same numbers before and after it moves into the tail,
            whose rows have their factor already.

    Returns:
        Queries (scaled by `key_dim ** -0.5`), keys, both l2-normalised, and values in the dtype of
        `x`; log decays and strengths in float32 (float64 of float64).
    """
    B, N, C = x.shape
    if row_scale is not None:
        factor = row_scale[:, :, None]
        x, a, b = (x * factor).to(x.dtype), a * factor, b * factor
    if kept is not None:
        kept.copy_(x)
    value_heads = A_log.shape[0]
    value_dim = (C - 2 * key_heads * key_dim) // value_heads
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mixed = naive.tree_conv(x.to(wide), tail.to(wide), taps, weight.to(wide))
    q = torch.empty(B, N, key_heads, key_dim, dtype=wide)
    k = torch.empty_like(q)
    for head in range(key_heads):
        for normalised, first in ((q, head), (k, key_heads + head)):
            one = mixed[..., first * key_dim : (first + 1) * key_dim]
            normalised[:, :, head] = one / (one.square().sum(-1, keepdim=True) + eps).sqrt()
    v = mixed[..., 2 * key_heads * key_dim :].reshape(B, N, value_heads, value_dim)
    g = -A_log.to(wide).exp() * F.softplus(a.to(wide) + dt_bias.to(wide))
    beta = torch.sigmoid(b.to(wide))
    return GdnInputs((q * key_dim**-0.5).to(x.dtype), k.to(x.dtype), v.to(x.dtype), g, beta)
