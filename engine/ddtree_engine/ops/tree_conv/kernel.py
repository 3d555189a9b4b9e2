"""`tree_conv` in one pass: every tap is a gather of rows, summed in float32, then SiLU.

Each input row is read once for each node that looks at it, nearly always from L2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_NODES = 4
BLOCK_CHANNELS = 256


@triton.jit
def convolve(
    x,
    tail,
    taps,
    weight,
    row_scale,
    node,
    some_node,
    channel,
    some_channel,
    x_node,
    tail_row,
    taps_node,
    taps_tap,
    weight_channel,
    weight_tap,
    SCALED: tl.constexpr,
    K: tl.constexpr,
    NODES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Some nodes and channels of one request after convolution and SiLU, in float32.

    `x` and `tail` are of one dtype, so that one load takes a row from either: a lane waits for one.

    Where SCALED, each row of `x` is multiplied by its own factor of `row_scale` and rounded to the
    dtype of `x`, as it is before it becomes a row of `tail`, which has its factor already.
    """
    mask = some_node[:, None] & some_channel[None, :]
    total = tl.zeros([NODES, CHANNELS], tl.float32)
    for tap in tl.static_range(K):
        row = tl.load(taps + node * taps_node + tap * taps_tap, mask=some_node, other=0)
        row = row.to(tl.int32)
        new = row - (K - 1)
        if SCALED:  # a committed row has no factor: times 1 it is what it was, bit for bit
            factor = tl.load(row_scale + new, mask=some_node & (new >= 0), other=1.0)
        at = tl.where(new < 0, tail + row * tail_row, x + new * x_node)
        source = tl.load(at[:, None] + channel[None, :], mask=mask, other=0.0)
        filter_tap = tl.load(
            weight + channel * weight_channel + tap * weight_tap, mask=some_channel, other=0.0
        )
        if SCALED:
            source = (source.to(tl.float32) * factor[:, None]).to(x.dtype.element_ty)
        total += source.to(tl.float32) * filter_tap.to(tl.float32)[None, :]
    return total / (1.0 + tl.exp(-total))


@triton.jit(do_not_specialize=["nodes", "taps_batch", "taps_node"])
def _tree_conv(
    x,
    tail,
    taps,
    weight,
    out,
    nodes,
    channels,
    x_batch,
    x_node,
    tail_batch,
    tail_row,
    taps_batch,
    taps_node,
    taps_tap,
    weight_channel,
    weight_tap,
    K: tl.constexpr,
    NODES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    b = tl.program_id(2)
    node = tl.program_id(1) * NODES + tl.arange(0, NODES)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    some_node, some_channel = node < nodes, channel < channels
    activated = convolve(
        x + b * x_batch,
        tail + b * tail_batch,
        taps + b * taps_batch,
        weight,
        x,
        node,
        some_node,
        channel,
        some_channel,
        x_node,
        tail_row,
        taps_node,
        taps_tap,
        weight_channel,
        weight_tap,
        False,
        K,
        NODES,
        CHANNELS,
    )
    tl.store(
        out + (b * nodes + node[:, None]) * channels + channel[None, :],
        activated.to(out.dtype.element_ty),
        mask=some_node[:, None] & some_channel[None, :],
    )


def supports(x: Tensor, tail: Tensor) -> bool:
    """Whether the kernel takes these strides and dtypes; if not, `vectorized.py` does."""
    return x.dtype == tail.dtype and x.stride(2) == 1 and tail.stride(2) == 1


def tree_conv(x: Tensor, tail: Tensor, taps: Tensor, weight: Tensor) -> Tensor:
    """See `naive.tree_conv`, of what it `supports`."""
    assert supports(x, tail)
    B, N, C = x.shape
    out = torch.empty(B, N, C, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(C, BLOCK_CHANNELS), triton.cdiv(N, BLOCK_NODES), B)
    _tree_conv[grid](
        x,
        tail,
        taps,
        weight,
        out,
        N,
        C,
        x.stride(0),
        x.stride(1),
        tail.stride(0),
        tail.stride(1),
        taps.stride(0),
        taps.stride(1),
        taps.stride(2),
        weight.stride(0),
        weight.stride(1),
        K=weight.shape[1],
        NODES=BLOCK_NODES,
        CHANNELS=BLOCK_CHANNELS,
    )
    return out
