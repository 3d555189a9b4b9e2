"""`conv_commit` on the GPU: some channels of a layer and request a program, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK_CHANNELS = 1024


@triton.jit(do_not_specialize=["requests", "nodes_row"])
def _conv_commit(
    inputs,
    path,
    path_lengths,
    tails,
    requests,
    channels,
    nodes_row,
    inputs_layer,
    inputs_batch,
    inputs_node,
    tails_layer,
    tails_batch,
    tails_row,
    TAIL: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    layer = (tl.program_id(1) // requests).to(tl.int64)
    b = (tl.program_id(1) % requests).to(tl.int64)
    inputs += layer * inputs_layer + b * inputs_batch
    tails += layer * tails_layer + b * tails_batch
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    some = channel < channels
    length = tl.load(path_lengths + b).to(tl.int32)
    # From the oldest row on: a row is read before it is written, by the thread that writes it.
    for row in tl.static_range(TAIL):
        source = length + row
        if source < TAIL:
            moved = tl.load(tails + source * tails_row + channel, mask=some, other=0.0)
        else:
            node = tl.load(path + b * nodes_row + source - TAIL).to(tl.int64)
            moved = tl.load(inputs + node * inputs_node + channel, mask=some, other=0.0)
        tl.store(tails + row * tails_row + channel, moved, mask=some)


def supports(inputs: Tensor, tails: Tensor) -> bool:
    """Whether the kernel takes these tensors: channels contiguous, one dtype."""
    return inputs.stride(3) == 1 and tails.stride(3) == 1 and inputs.dtype == tails.dtype


def conv_commit(inputs: Tensor, nodes: Tensor, path_lengths: Tensor, tails: Tensor) -> None:
    """See `naive.conv_commit`."""
    L, B, _, C = inputs.shape
    _conv_commit[(triton.cdiv(C, BLOCK_CHANNELS), L * B)](
        inputs,
        nodes,
        path_lengths,
        tails,
        B,
        C,
        nodes.stride(0),
        *inputs.stride()[:3],
        *tails.stride()[:3],
        TAIL=tails.shape[2],
        CHANNELS=BLOCK_CHANNELS,
        num_warps=4,
    )
