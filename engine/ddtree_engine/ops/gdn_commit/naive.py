"""The specification of `gdn_commit`: the accepted path as a chain, then the recurrence."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.gdn_inputs import naive as gdn_inputs
from ddtree_engine.ops.state_commit import naive as state_commit


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
    """Advance `state` in place along the accepted path of each request.

    A verify pass need keep no keys and values: they follow from what the convolution saw.

    Args:
        inputs: [L, B, N, C] of the convolution, of all nodes of each tree in every recurrent layer.
        tails: [L, B, K-1, C] the last committed inputs, oldest first; only read.
        weight: [L, C, K] filters of the convolution, oldest tap first.
        g: [L, B, N, HV] log of the decay.
        beta: [L, B, N, HV] write strength.
        nodes: [B, D] int64, the accepted path.
        path_lengths: [B] int64, nodes of it, from 0 to D; what lies past them is ignored.
        state: [L, B, HV, dk, dv] float32 (float64 in tests), modified in place.
        key_heads: heads of the queries and of the keys in C, of dk channels each.
        eps: added to a sum of squares before its root.
    """
    L, B = inputs.shape[:2]
    K, dk, none = weight.shape[2], state.shape[3], torch.zeros(state.shape[2])
    for layer in range(L):
        for b in range(B):
            path = nodes[b, : int(path_lengths[b])]
            if not len(path):
                continue
            x = inputs[layer, b, path][None]
            taps = (torch.arange(len(path))[:, None] + torch.arange(K))[None]
            gates = torch.zeros(1, len(path), state.shape[2])
            _, k, v, _, _ = gdn_inputs.gdn_inputs(
                x,
                tails[layer, b][None],
                taps,
                weight[layer],
                gates,
                gates,
                none,
                none,
                key_heads=key_heads,
                key_dim=dk,
                eps=eps,
            )
            state_commit.state_commit(
                k[None],
                v[None],
                g[layer, b, path][None, None],
                beta[layer, b, path][None, None],
                path_lengths[b : b + 1],
                state[layer : layer + 1, b : b + 1],
            )
