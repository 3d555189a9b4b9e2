"""`drafter_attention` through PyTorch's scaled dot product attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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
    """See `naive.drafter_attention`."""
    B, M = q.shape[:2]
    T = k_context.shape[1]
    device = q.device
    position = torch.arange(T, device=device)
    offset = torch.arange(M, device=device)
    committed = position < lengths[:, None]
    if q.is_cuda or bool((lengths < T).any()):
        k_context = k_context.masked_fill(~committed[:, :, None, None], 0)
        v_context = v_context.masked_fill(~committed[:, :, None, None], 0)
    context = committed[:, None, :].expand(B, M, T)
    if window is not None:
        oldest = lengths[:, None] + offset - (window - 1)
        context = context & (position >= oldest[:, :, None])
    block = torch.ones(M, M, dtype=torch.bool, device=device)
    if causal:
        block = block.tril()
    mask = torch.cat([context, block.expand(B, M, M)], dim=2)
    return F.scaled_dot_product_attention(
        q.transpose(1, 2),
        torch.cat([k_context, k], dim=1).transpose(1, 2),
        torch.cat([v_context, v], dim=1).transpose(1, 2),
        attn_mask=mask[:, None],
        scale=scale,
        enable_gqa=True,
    ).transpose(1, 2)
