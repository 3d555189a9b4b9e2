"""The specification of `tree_gdn`: every node owns a copy of its parent's state."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_gdn(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, ancestors: Tensor
) -> Tensor:
    """Outputs of the gated delta rule at every node of a tree (arXiv 2412.06464, eq. 10).

    With S the state of the parent (of the root: `state`), node i computes
    `S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q`.

    Args:
        q: [B, N, HK, dk] l2-normalised, scaled by dk**-0.5.
        k: [B, N, HK, dk] l2-normalised.
        v: [B, N, HV, dv]; key head h serves value heads h*HV/HK .. (h+1)*HV/HK - 1.
        g: [B, N, HV] log of the decay, <= 0.
        beta: [B, N, HV] write strength.
        state: [B, HV, dk, dv] committed state before the root; not modified.
        ancestors: [B, N, N] bool, [i, j] true where j is i or an ancestor of i; the ancestors of a
            node come before it.

    Returns:
        [B, N, HV, dv]
    """
    B, N, HV, _ = v.shape
    repeat = HV // q.shape[2]
    out = torch.empty_like(v)
    for b in range(B):
        for h in range(HV):
            states: list[Tensor] = []
            for i in range(N):
                above = [j for j in range(i) if bool(ancestors[b, i, j])]
                S = states[above[-1]] if above else state[b, h]
                key, value = k[b, i, h // repeat], v[b, i, h]
                S = S * torch.exp(g[b, i, h])
                delta = beta[b, i, h] * (value - S.t() @ key)
                S = S + torch.outer(key, delta)
                states.append(S)
                out[b, i, h] = S.t() @ q[b, i, h // repeat]
    return out
