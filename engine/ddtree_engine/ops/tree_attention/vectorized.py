"""`tree_attention` through PyTorch's scaled dot product attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ddtree_engine.ops.sigmoid_gate import sigmoid_gate


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
    """See `naive.tree_attention`. A non-finite node reaches its descendants and no one else."""
    out = _attend(q, k_prefix, v_prefix, lengths, k, v, ancestors, scale)
    return out if gate is None else sigmoid_gate(out, gate, row_scale=row_scale)


def _attend(
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    ancestors: Tensor,
    scale: float,
) -> Tensor:
    B, N = q.shape[:2]
    T = k_prefix.shape[1]
    committed = torch.arange(T, device=q.device) < lengths[:, None]
    # Rows past the end may hold anything, NaN included, which a weight of zero would not silence.
    if q.is_cuda or bool((lengths < T).any()):
        k_prefix = k_prefix.masked_fill(~committed[:, :, None, None], 0)
        v_prefix = v_prefix.masked_fill(~committed[:, :, None, None], 0)
    mask = torch.cat([committed[:, None, :].expand(B, N, T), ancestors], dim=2)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q.transpose(1, 2),
            torch.cat([k_prefix, k], dim=1).transpose(1, 2),
            torch.cat([v_prefix, v], dim=1).transpose(1, 2),
            attn_mask=mask[:, None],
            scale=scale,
            enable_gqa=True,
        ).transpose(1, 2)

    # As in tree_gdn: zero weight times NaN is NaN, so broken nodes are taken out and put back.
    if not q.is_cuda:
        out = attend(q, k, v)
        if bool(torch.isfinite(out.sum())):
            return out
    broken = ~(
        torch.isfinite(q).all(-1).all(-1)
        & torch.isfinite(k).all(-1).all(-1)
        & torch.isfinite(v).all(-1).all(-1)
    )
    head = broken[:, :, None, None]
    out = attend(q.masked_fill(head, 0), k.masked_fill(head, 0), v.masked_fill(head, 0))
    reached = (ancestors & broken[:, None, :]).any(-1)
    return out.masked_fill(reached[:, :, None, None], torch.nan)
