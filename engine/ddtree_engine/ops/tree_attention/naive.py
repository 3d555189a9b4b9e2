"""The specification of `tree_attention`: one query, one list of visible keys."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_attention(
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    ancestors: Tensor,
    scale: float,
    gate: Tensor | None = None,
    *,
    row_scale: Tensor | None = None,
) -> Tensor:
    """Softmax attention over the prefix and the ancestors of each node, gated where there is one.

    Args:
        q: [B, N, HQ, d]; query head h reads key head h // (HQ / HKV).
        k_prefix: [B, T, HKV, d] committed keys; rows from `lengths[b]` on are garbage.
        v_prefix: [B, T, HKV, d]
        lengths: [B] int64, committed tokens of each request, <= T.
        k: [B, N, HKV, d] keys of the nodes.
        v: [B, N, HKV, d]
        ancestors: [B, N, N] bool, [i, j] true where j is i or an ancestor of i.
        scale: factor of the scores.
        gate: [B, N, HQ, d], whose sigmoid multiplies the result.
        row_scale: [B, N] float32 (float64 of float64 inputs), factor of each row of `gate`, and of
            nothing else; None is 1.

    Returns:
        [B, N, HQ, d]
    """
    B, N, HQ, _ = q.shape
    group = HQ // k.shape[2]
    out = torch.empty_like(q)
    for b in range(B):
        n = int(lengths[b])
        for i in range(N):
            own = [j for j in range(N) if bool(ancestors[b, i, j])]
            for h in range(HQ):
                keys = torch.cat([k_prefix[b, :n, h // group], k[b, own, h // group]])
                values = torch.cat([v_prefix[b, :n, h // group], v[b, own, h // group]])
                weights = torch.softmax((keys @ q[b, i, h]) * scale, dim=0)
                out[b, i, h] = weights @ values
    if gate is None:
        return out
    if row_scale is not None:
        gate = gate * row_scale[:, :, None, None]
    return (out * torch.sigmoid(gate)).to(q.dtype)
