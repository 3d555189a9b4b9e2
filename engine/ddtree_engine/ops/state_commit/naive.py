"""The specification of `state_commit`: the recurrence, one layer, head and token at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def state_commit(
    k: Tensor, v: Tensor, g: Tensor, beta: Tensor, path_lengths: Tensor, state: Tensor
) -> None:
    """Advance `state` in place along the accepted path, with the arithmetic of plain decoding.

    Because it is the recurrence itself, the state after a round depends on the accepted tokens and
    not on the tree that proposed them.

    Args:
        k: [L, B, D, HK, dk] l2-normalised keys of the accepted path in every recurrent layer.
        v: [L, B, D, HV, dv]
        g: [L, B, D, HV] log of the decay.
        beta: [L, B, D, HV]
        path_lengths: [B] int64, accepted nodes of each request, <= D; what lies past them is
            ignored.
        state: [L, B, HV, dk, dv] float32 (float64 in tests), modified in place.
    """
    L, B, _, HV, _ = v.shape
    repeat = HV // k.shape[3]
    for layer in range(L):
        for b in range(B):
            for h in range(HV):
                S = state[layer, b, h].clone()
                for t in range(int(path_lengths[b])):
                    key = k[layer, b, t, h // repeat].to(S.dtype)
                    S = S * torch.exp(g[layer, b, t, h].to(S.dtype))
                    delta = beta[layer, b, t, h] * (v[layer, b, t, h].to(S.dtype) - S.t() @ key)
                    S = S + torch.outer(key, delta)
                state[layer, b, h] = S
