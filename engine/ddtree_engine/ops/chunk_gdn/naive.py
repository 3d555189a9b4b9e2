"""The gated delta rule, one token after the other: the specification of this op."""

from __future__ import annotations

import torch
from torch import Tensor


def chunk_gdn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """Runs the recurrence token by token; arguments and result as in the vectorized form.

    For every head, with the state ``S`` of shape ``[dk, dv]``::

        S <- exp(g_t) S;   d = beta_t (v_t - S^T k_t);   S <- S + k_t d^T;   o_t = S^T q_t

    ``chunk_size`` is accepted and means nothing here. Half-precision inputs are computed in
    fp32, fp32 and fp64 inputs in their own precision.
    """
    del chunk_size
    B, T, HK, dk = k.shape
    HV, dv = v.shape[2:]
    group = HV // HK
    dtype = v.dtype if v.dtype in (torch.float32, torch.float64) else torch.float32
    q, k, v, g, beta = (x.to(dtype) for x in (q, k, v, g, beta))
    state = (
        torch.zeros(B, HV, dk, dv, dtype=dtype, device=v.device)
        if initial_state is None
        else initial_state.to(dtype)
    )
    rows: list[Tensor] = []
    for b in range(B):
        heads: list[Tensor] = []
        for h in range(HV):
            S = state[b, h]
            outputs: list[Tensor] = []
            for t in range(T):
                key, query = k[b, t, h // group], q[b, t, h // group]
                S = g[b, t, h].exp() * S
                delta = beta[b, t, h] * (v[b, t, h] - S.T @ key)
                S = S + torch.outer(key, delta)
                outputs.append(S.T @ query)
            heads.append(torch.cat([torch.stack(outputs).reshape(-1), S.reshape(-1)]))
        rows.append(torch.stack(heads))
    packed = torch.stack(rows)  # [B, HV, T*dv + dk*dv]
    out, final = packed[..., : T * dv], packed[..., T * dv :]
    return out.reshape(B, HV, T, dv).transpose(1, 2), final.reshape(B, HV, dk, dv)
