"""`gdn_commit` with PyTorch: all layers and requests at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ddtree_engine.ops.state_commit import vectorized


def gdn_commit(
    inputs: Tensor,
    tails: Tensor,
    weight: Tensor,
    g: Tensor,
    beta: Tensor,
    nodes: Tensor,
    path_lengths: Tensor,
    state: Tensor,
    *,
    key_heads: int,
    eps: float,
) -> None:
    """See `naive.gdn_commit`."""
    L, B, _, C = inputs.shape
    D, K, dk = nodes.shape[1], weight.shape[2], state.shape[3]
    request = torch.arange(B, device=inputs.device)[:, None]
    rows = torch.cat([tails, inputs[:, request, nodes]], dim=2)
    windows = rows.unfold(2, K, 1)  # [L, B, D, C, K]
    mixed = F.silu((windows.transpose(3, 4) * weight.transpose(1, 2)[:, None, None]).sum(dim=3))
    wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    keys = key_heads * dk
    _, k, v = torch.split(mixed.to(wide), [keys, keys, C - 2 * keys], dim=-1)
    k = k.reshape(L, B, D, key_heads, dk)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + eps)
    vectorized.state_commit(
        k.to(inputs.dtype),
        v.reshape(L, B, D, state.shape[2], -1).to(inputs.dtype),
        g[:, request, nodes],
        beta[:, request, nodes],
        path_lengths,
        state,
    )
