"""`gdn_inputs` in one launch: convolution, SiLU, norms and gates of one head a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.gdn_inputs.result import GdnInputs
from ddtree_engine.ops.tree_conv.kernel import convolve

BLOCK_NODES = 4
WARPS = 2


@triton.jit(do_not_specialize=["nodes", "taps_batch", "taps_node", "a_batch", "b_batch"])
def _gdn_inputs(
    x,
    tail,
    taps,
    weight,
    a,
    b,
    A_log,
    dt_bias,
    row_scale,
    q,
    k,
    v,
    g,
    beta,
    kept,
    nodes,
    value_heads,
    value_dim,
    x_batch,
    x_node,
    tail_batch,
    tail_row,
    taps_batch,
    taps_node,
    taps_tap,
    weight_channel,
    weight_tap,
    a_batch,
    a_node,
    b_batch,
    b_node,
    scale,
    eps,
    KEEPS: tl.constexpr,
    SCALED: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    K: tl.constexpr,
    NODES: tl.constexpr,
    DIM: tl.constexpr,
):
    head = tl.program_id(0)
    request = tl.program_id(2)
    node = tl.program_id(1) * NODES + tl.arange(0, NODES)
    some_node = node < nodes
    row = request * nodes + node
    dim = tl.arange(0, DIM)
    value_head = head - 2 * KEY_HEADS
    is_value = value_head >= 0
    size = tl.where(is_value, value_dim, KEY_DIM)
    first = tl.where(is_value, 2 * KEY_HEADS * KEY_DIM + value_head * value_dim, head * KEY_DIM)
    some_dim = dim < size
    mask = some_node[:, None] & some_dim[None, :]
    if SCALED:
        factor = tl.load(row_scale + row, mask=some_node, other=1.0)
    if KEEPS:
        channels = 2 * KEY_HEADS * KEY_DIM + value_heads * value_dim
        own = tl.load(
            x + request * x_batch + node[:, None] * x_node + (first + dim)[None, :],
            mask=mask,
            other=0.0,
        )
    # What the gates need is on its way while rows are gathered.
    gated = some_node & is_value
    step = tl.load(a + request * a_batch + node * a_node + value_head, mask=gated, other=0.0)
    write = tl.load(b + request * b_batch + node * b_node + value_head, mask=gated, other=0.0)
    step, write = step.to(tl.float32), write.to(tl.float32)
    bias = tl.load(dt_bias + value_head, mask=is_value, other=0.0).to(tl.float32)
    rate = tl.load(A_log + value_head, mask=is_value, other=0.0).to(tl.float32)
    mixed = convolve(
        x + request * x_batch,
        tail + request * tail_batch,
        taps + request * taps_batch,
        weight,
        row_scale + request * nodes,
        node,
        some_node,
        first + dim,
        some_dim,
        x_node,
        tail_row,
        taps_node,
        taps_tap,
        weight_channel,
        weight_tap,
        SCALED,
        K,
        NODES,
        DIM,
    )
    if is_value:
        at = row * value_heads + value_head
        tl.store(
            v + at[:, None] * value_dim + dim[None, :], mixed.to(v.dtype.element_ty), mask=mask
        )
        if SCALED:
            step *= factor
            write *= factor
        step += bias
        softplus = tl.where(step > 20.0, step, tl.log(1.0 + tl.exp(tl.minimum(step, 20.0))))
        tl.store(g + at, -tl.exp(rate) * softplus, mask=some_node)
        tl.store(beta + at, 1.0 / (1.0 + tl.exp(-write)), mask=some_node)
    else:
        squares = tl.sum(tl.where(mask, mixed * mixed, 0.0), axis=1)
        mixed *= (1.0 / tl.sqrt(squares + eps))[:, None]
        if head < KEY_HEADS:
            query = (row * KEY_HEADS + head)[:, None] * KEY_DIM + dim[None, :]
            tl.store(q + query, (mixed * scale).to(q.dtype.element_ty), mask=mask)
        else:
            key = (row * KEY_HEADS + head - KEY_HEADS)[:, None] * KEY_DIM + dim[None, :]
            tl.store(k + key, mixed.to(k.dtype.element_ty), mask=mask)
    if KEEPS:
        # Last: what it writes and what is read may be one place to the compiler, so that a load
        # after it would wait for it.
        if SCALED:
            own = (own.to(tl.float32) * factor[:, None]).to(x.dtype.element_ty)
        copy = kept + row[:, None].to(tl.int64) * channels + (first + dim)[None, :]
        tl.store(copy, own, mask=mask)


def supports(x: Tensor, tail: Tensor, a: Tensor, b: Tensor, kept: Tensor | None) -> bool:
    """Whether the kernel takes these strides and dtypes; if not, `vectorized.py` does."""
    if x.dtype != tail.dtype or (kept is not None and not kept.is_contiguous()):
        return False
    return all(t.stride(2) == 1 for t in (x, tail, a, b))


def gdn_inputs(
    x: Tensor,
    tail: Tensor,
    taps: Tensor,
    weight: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    key_heads: int,
    key_dim: int,
    eps: float,
    kept: Tensor | None = None,
    row_scale: Tensor | None = None,
) -> GdnInputs:
    """See `naive.gdn_inputs`."""
    B, N, C = x.shape
    value_heads = A_log.shape[0]
    value_dim = (C - 2 * key_heads * key_dim) // value_heads
    q = torch.empty(B, N, key_heads, key_dim, dtype=x.dtype, device=x.device)
    k = torch.empty_like(q)
    v = torch.empty(B, N, value_heads, value_dim, dtype=x.dtype, device=x.device)
    g = torch.empty(B, N, value_heads, dtype=torch.float32, device=x.device)
    beta = torch.empty_like(g)
    _gdn_inputs[(2 * key_heads + value_heads, triton.cdiv(N, BLOCK_NODES), B)](
        x,
        tail,
        taps,
        weight,
        a,
        b,
        A_log,
        dt_bias,
        x if row_scale is None else row_scale.contiguous(),
        q,
        k,
        v,
        g,
        beta,
        x if kept is None else kept,
        N,
        value_heads,
        value_dim,
        *x.stride()[:2],
        *tail.stride()[:2],
        *taps.stride(),
        *weight.stride(),
        *a.stride()[:2],
        *b.stride()[:2],
        key_dim**-0.5,
        eps,
        KEEPS=kept is not None,
        SCALED=row_scale is not None,
        KEY_HEADS=key_heads,
        KEY_DIM=key_dim,
        K=weight.shape[1],
        NODES=BLOCK_NODES,
        DIM=triton.next_power_of_2(max(key_dim, value_dim)),
        num_warps=WARPS,
    )
    return GdnInputs(q, k, v, g, beta)
