"""`gdn_commit` on the GPU: all layers in one launch, each state read and written once.

A program holds its slice of a state in registers and steps along its own request's path. Which
programs run beside it, and how long their paths are, changes no bit of it. A step first makes its
key and its slice of the value: each program of a head repeats the convolution of the head's key, a
few hundred numbers from L2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 64
WARPS = 2


@triton.jit
def _mixed(
    inputs,
    tails,
    weight,
    path,
    step,
    channel,
    some,
    inputs_node,
    tails_row,
    weight_channel,
    weight_tap,
    K: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Some channels of a step of the path after convolution and SiLU, in float32."""
    total = tl.zeros([SIZE], tl.float32)
    for tap in tl.static_range(K):
        past = step - (K - 1) + tap
        if past < 0:
            row = tails + (K - 1 + past) * tails_row
        else:
            row = inputs + tl.load(path + past) * inputs_node
        source = tl.load(row + channel, mask=some, other=0.0).to(tl.float32)
        filter_tap = tl.load(
            weight + channel * weight_channel + tap * weight_tap, mask=some, other=0.0
        )
        total += source * filter_tap.to(tl.float32)
    return total / (1.0 + tl.exp(-total))


@triton.jit(
    do_not_specialize=[
        "requests",
        "inputs_layer",
        "inputs_batch",
        "g_layer",
        "g_batch",
        "beta_layer",
        "beta_batch",
        "path_batch",
    ]
)
def _gdn_commit(
    inputs,
    tails,
    weight,
    g,
    beta,
    path,
    path_lengths,
    state,
    requests,
    key_heads,
    key_dim,
    value_dim,
    inputs_layer,
    inputs_batch,
    inputs_node,
    tails_layer,
    tails_batch,
    tails_row,
    weight_layer,
    weight_channel,
    weight_tap,
    g_layer,
    g_batch,
    g_node,
    beta_layer,
    beta_batch,
    beta_node,
    path_batch,
    state_layer,
    state_batch,
    state_head,
    state_key,
    eps,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
):
    head = tl.program_id(1)
    layer = (tl.program_id(2) // requests).to(tl.int64)
    b = tl.program_id(2) % requests
    inputs += layer * inputs_layer + b * inputs_batch
    tails += layer * tails_layer + b * tails_batch
    weight += layer * weight_layer
    g += layer * g_layer + b * g_batch + head
    beta += layer * beta_layer + b * beta_batch + head
    path += b * path_batch
    state += layer * state_layer + b * state_batch + head * state_head
    length = tl.load(path_lengths + b).to(tl.int32)
    if length == 0:
        return
    key = tl.arange(0, KEY)
    value = tl.program_id(0) * VALUE + tl.arange(0, VALUE)
    some_key, some_value = key < key_dim, value < value_dim
    key_channel = (key_heads + head // GROUP) * key_dim + key
    value_channel = 2 * key_heads * key_dim + head * value_dim + value
    where = state + key[:, None] * state_key + value[None, :]
    mask = some_key[:, None] & some_value[None, :]
    S = tl.load(where, mask=mask, other=0.0)
    kind = inputs.dtype.element_ty
    for step in range(length):
        k = _mixed(
            inputs,
            tails,
            weight,
            path,
            step,
            key_channel,
            some_key,
            inputs_node,
            tails_row,
            weight_channel,
            weight_tap,
            K,
            KEY,
        )
        squares = tl.sum(tl.where(some_key, k * k, 0.0), axis=0)
        k = (k * (1.0 / tl.sqrt(squares + eps))).to(kind).to(tl.float32)
        v = _mixed(
            inputs,
            tails,
            weight,
            path,
            step,
            value_channel,
            some_value,
            inputs_node,
            tails_row,
            weight_channel,
            weight_tap,
            K,
            VALUE,
        )
        v = v.to(kind).to(tl.float32)
        node = tl.load(path + step)
        strength = tl.load(beta + node * beta_node).to(tl.float32)
        decay = tl.exp(tl.load(g + node * g_node).to(tl.float32))
        delta = strength * (v - decay * tl.sum(S * k[:, None], axis=0))
        S = S * decay + k[:, None] * delta[None, :]
    tl.store(where, S, mask=mask)


def supports(inputs: Tensor, tails: Tensor, nodes: Tensor, state: Tensor) -> bool:
    """Whether the kernel takes these strides and dtypes; if not, `vectorized.py` does."""
    return state.dtype == torch.float32 and all(
        t.stride(-1) == 1 for t in (inputs, tails, nodes, state)
    )


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
    values: int = VALUES,
    warps: int = WARPS,
) -> None:
    """See `naive.gdn_commit`; `values` columns of a state a program, on `warps` warps."""
    L, B, HV, dk, dv = state.shape
    values = min(values, triton.next_power_of_2(dv))
    _gdn_commit[(triton.cdiv(dv, values), HV, L * B)](
        inputs,
        tails,
        weight,
        g,
        beta,
        nodes,
        path_lengths,
        state,
        B,
        key_heads,
        dk,
        dv,
        *inputs.stride()[:3],
        *tails.stride()[:3],
        *weight.stride(),
        *g.stride()[:3],
        *beta.stride()[:3],
        nodes.stride(0),
        *state.stride()[:4],
        eps,
        GROUP=HV // key_heads,
        K=weight.shape[2],
        KEY=triton.next_power_of_2(dk),
        VALUE=values,
        num_warps=warps,
    )
