"""`state_commit` on the GPU: all layers in one launch, each state read and written once.

A program holds its slice of a state in registers and steps along its own request's path. Which
programs run beside it, and how long their paths are, changes no bit of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 32
WARPS = 2


@triton.jit(
    do_not_specialize=["requests", "nodes_row", "g_layer", "g_batch", "beta_layer", "beta_batch"]
)
def _state_commit(
    k,
    v,
    g,
    beta,
    path,
    path_lengths,
    state,
    requests,
    key_dim,
    value_dim,
    nodes_row,
    k_layer,
    k_batch,
    k_step,
    k_head,
    v_layer,
    v_batch,
    v_step,
    v_head,
    g_layer,
    g_batch,
    g_step,
    beta_layer,
    beta_batch,
    beta_step,
    state_layer,
    state_batch,
    state_head,
    state_key,
    GROUP: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    INDEXED: tl.constexpr,
):
    head = tl.program_id(1)
    layer = (tl.program_id(2) // requests).to(tl.int64)
    b = tl.program_id(2) % requests
    k += layer * k_layer + b * k_batch + (head // GROUP) * k_head
    v += layer * v_layer + b * v_batch + head * v_head
    g += layer * g_layer + b * g_batch + head
    beta += layer * beta_layer + b * beta_batch + head
    state += layer * state_layer + b * state_batch + head * state_head
    key = tl.arange(0, KEY)
    value = tl.program_id(0) * VALUE + tl.arange(0, VALUE)
    some_key, some_value = key < key_dim, value < value_dim
    where = state + key[:, None] * state_key + value[None, :]
    mask = some_key[:, None] & some_value[None, :]
    S = tl.load(where, mask=mask, other=0.0)
    for step in range(tl.load(path_lengths + b).to(tl.int32)):
        node = step
        if INDEXED:
            node = tl.load(path + b * nodes_row + step).to(tl.int32)
        key_row = tl.load(k + node * k_step + key, mask=some_key, other=0.0).to(tl.float32)
        value_row = tl.load(v + node * v_step + value, mask=some_value, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(g + node * g_step).to(tl.float32))
        strength = tl.load(beta + node * beta_step).to(tl.float32)
        delta = strength * (value_row - decay * tl.sum(S * key_row[:, None], axis=0))
        S = S * decay + key_row[:, None] * delta[None, :]
    tl.store(where, S, mask=mask)


def supports(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> bool:
    """Whether the kernel takes these strides and dtypes; if not, `vectorized.py` does."""
    return state.dtype == torch.float32 and all(t.stride(-1) == 1 for t in (k, v, g, beta, state))


def state_commit(
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    path_lengths: Tensor,
    state: Tensor,
    nodes: Tensor | None = None,
    *,
    values: int = VALUES,
    warps: int = WARPS,
) -> None:
    """See `naive.state_commit`; `values` columns of a state a program, on `warps` warps."""
    assert nodes is None or nodes.stride(1) == 1
    L, B, _, HV, dv = v.shape
    HK, dk = k.shape[3:]
    _state_commit[(triton.cdiv(dv, values), HV, L * B)](
        k,
        v,
        g,
        beta,
        path_lengths if nodes is None else nodes,
        path_lengths,
        state,
        B,
        dk,
        dv,
        0 if nodes is None else nodes.stride(0),
        *k.stride()[:4],
        *v.stride()[:4],
        *g.stride()[:3],
        *beta.stride()[:3],
        *state.stride()[:4],
        GROUP=HV // HK,
        KEY=triton.next_power_of_2(dk),
        VALUE=values,
        INDEXED=nodes is not None,
        num_warps=warps,
    )
