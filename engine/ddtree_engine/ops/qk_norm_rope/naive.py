"""The specification of `qk_norm_rope`: one head's vector at a time."""

from __future__ import annotations

import torch
from torch import Tensor


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
    """Root mean square norm of each head, then rotary position embedding of its first dimensions.

    Dimension i of the first half of the rotated ones turns against dimension i of the second half.

    Args:
        q: [B, N, HQ, d]
        k: [B, N, HKV, d]
        v: [B, N, HKV, d]
        q_weight: [d] of the queries' norm.
        k_weight: [d] of the keys' norm; [G, d] of G norms, each for as many heads after another.
        cos: [B, N, 1, r] of the angles, r <= d and even, both halves alike.
        sin: [B, N, 1, r]
        eps: added to the mean of squares.
        zero_centered: whether a norm's factor is `1 + weight` and not `weight`.
        row_scale: [B, N] float32 (float64 of float64 inputs), factor of each row of `q`, `k` and
            `v`; None is 1.

    Returns:
        Queries and keys, in their dtype and shapes; the norm, of the scaled rows in float32, is
        rounded to that dtype before the rotation, which is computed in float32. And the values,
        scaled. Each is a tensor of its own, so that none keeps alive the projection that all three
        are slices of.
    """
    B, N = q.shape[:2]
    factors = torch.ones(B, N) if row_scale is None else row_scale
    center = 1.0 if zero_centered else 0.0
    return (
        _one(q, factors, q_weight, cos, sin, eps, center),
        _one(k, factors, k_weight, cos, sin, eps, center),
        (v * factors[:, :, None, None]).to(v.dtype, memory_format=torch.contiguous_format),
    )


def _one(
    x: Tensor,
    factors: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    center: float,
) -> Tensor:
    B, N, heads, _ = x.shape
    half = cos.shape[-1] // 2
    out = torch.empty(x.shape, dtype=x.dtype)
    for b in range(B):
        for n in range(N):
            for h in range(heads):
                row = x[b, n, h].float() * factors[b, n].float()
                factor = weight.view(-1, len(row))[h * weight.numel() // len(row) // heads]
                row = row / (row.square().mean() + eps).sqrt() * (factor.float() + center)
                row = row.to(x.dtype).float()
                turned = row.clone()
                for i in range(half):
                    c, s = cos[b, n, 0, i], sin[b, n, 0, i]
                    turned[i] = row[i] * c - row[half + i] * s
                    turned[half + i] = row[half + i] * c + row[i] * s
                out[b, n, h] = turned.to(x.dtype)
    return out
