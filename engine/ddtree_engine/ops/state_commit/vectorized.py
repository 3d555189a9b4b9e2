"""`state_commit` over all layers, requests and heads at once; a loop over the path remains."""

from __future__ import annotations

import torch
from torch import Tensor


def state_commit(
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    path_lengths: Tensor,
    state: Tensor,
    nodes: Tensor | None = None,
) -> None:
    """See `naive.state_commit`."""
    if nodes is not None:
        request = torch.arange(len(nodes), device=nodes.device)[:, None]
        k, v, g, beta = (tensor[:, request, nodes] for tensor in (k, v, g, beta))
    D = v.shape[2]
    repeat = v.shape[3] // k.shape[3]
    live = torch.arange(D, device=v.device) < path_lengths[:, None]  # [B, D]
    dead = ~live[None, :, :, None]
    # A step past the end of a shorter path decays by e^0 and writes nothing: exactly the identity.
    decay = g.to(state.dtype).masked_fill(dead, 0).exp()[..., None, None]
    strength = beta.to(state.dtype).masked_fill(dead, 0)[..., None]
    keys = k.to(state.dtype).masked_fill(dead[..., None], 0).repeat_interleave(repeat, dim=3)
    values = v.to(state.dtype).masked_fill(dead[..., None], 0)
    for t in range(D):
        state.mul_(decay[:, :, t])
        key = keys[:, :, t]  # [L, B, HV, dk]
        seen = (key[..., None, :] @ state)[..., 0, :]
        delta = strength[:, :, t] * (values[:, :, t] - seen)
        state.add_(key[..., :, None] * delta[..., None, :])
