"""The specification of `drafter_attention`: DFlash's mask rule, one pair at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def sees_context(position: int, anchor: int, offset: int, window: int | None) -> bool:
    """Whether block row `offset` of the block at `anchor` sees the context token at `position`."""
    return position < anchor and (window is None or position >= anchor + offset - (window - 1))


def sees_block(key_offset: int, query_offset: int, causal: bool) -> bool:
    """Whether block row `query_offset` sees block row `key_offset`."""
    return not causal or key_offset <= query_offset


def drafter_attention(
    q: Tensor,
    k_context: Tensor,
    v_context: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> Tensor:
    """Softmax attention of a block over its context (positions 0 .. length-1) and itself.

    Args:
        q: [B, M, HQ, d] queries of the block, whose row 0 stands at position `lengths[b]`.
        k_context: [B, T, HKV, d] keys of the target's features; rows from `lengths[b]` on are
            garbage.
        v_context: [B, T, HKV, d]
        lengths: [B] int64, context tokens of each request, <= T.
        k: [B, M, HKV, d] keys of the block.
        v: [B, M, HKV, d]
        causal: whether a row sees only itself and earlier rows of the block.
        window: how many tokens back a row sees, itself included; None sees all.
        scale: factor of the scores.

    Returns:
        [B, M, HQ, d]
    """
    B, M, HQ, _ = q.shape
    group = HQ // k.shape[2]
    out = torch.empty_like(q)
    for b in range(B):
        n = int(lengths[b])
        for i in range(M):
            context = [p for p in range(n) if sees_context(p, n, i, window)]
            block = [j for j in range(M) if sees_block(j, i, causal)]
            for h in range(HQ):
                keys = torch.cat([k_context[b, context, h // group], k[b, block, h // group]])
                values = torch.cat([v_context[b, context, h // group], v[b, block, h // group]])
                weights = torch.softmax((keys @ q[b, i, h]) * scale, dim=0)
                out[b, i, h] = weights @ values
    return out
