"""The specification of `state_commit`: the recurrence, one layer, head and token at a time."""

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
    """Advance `state` in place along the accepted path, with the arithmetic of plain decoding.

    Because it is the recurrence itself, the state after a round depends on the accepted tokens and
    not on the tree that proposed them.

    Args:
        k: [L, B, N, HK, dk] l2-normalised keys of the nodes in every recurrent layer.
        v: [L, B, N, HV, dv]
        g: [L, B, N, HV] log of the decay.
        beta: [L, B, N, HV]
        path_lengths: [B] int64, accepted nodes of each request, from 0 on; what lies past them is
            ignored.
        state: [L, B, HV, dk, dv] float32 (float64 in tests), modified in place.
        nodes: [B, D] int64, the accepted path; by default nodes 0, 1, 2, ...
    """
    L, B, _, HV, _ = v.shape
    repeat = HV // k.shape[3]
    for layer in range(L):
        for b in range(B):
            for h in range(HV):
                S = state[layer, b, h].clone()
                for step in range(int(path_lengths[b])):
                    t = step if nodes is None else int(nodes[b, step])
                    key = k[layer, b, t, h // repeat].to(S.dtype)
                    S = S * torch.exp(g[layer, b, t, h].to(S.dtype))
                    delta = beta[layer, b, t, h] * (v[layer, b, t, h].to(S.dtype) - S.t() @ key)
                    S = S + torch.outer(key, delta)
                state[layer, b, h] = S
