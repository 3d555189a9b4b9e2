"""`ancestor_bits` on the GPU: a program packs the rows of a few nodes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.ancestor_bits.naive import WORD_BITS, WORDS

BLOCK_NODES = 8


@triton.jit(do_not_specialize=["nodes", "batch_stride", "row_stride"])
def _ancestor_bits(
    ancestors,
    bits,
    nodes,
    batch_stride,
    row_stride,
    NODES: tl.constexpr,
    WORDS: tl.constexpr,
    WORD_BITS: tl.constexpr,
):
    b = tl.program_id(1)
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    place = tl.arange(0, WORDS * WORD_BITS)
    other = 1 + place
    seen = tl.load(
        ancestors + b * batch_stride + node[:, None] * row_stride + other[None, :],
        mask=(node < nodes)[:, None] & (other < nodes)[None, :],
        other=0,
    ).to(tl.int1)
    one = tl.full([1, 1], 1, tl.int32) << (place % WORD_BITS)[None, :]
    words = tl.sum(tl.where(seen, one, 0).reshape(NODES, WORDS, WORD_BITS), axis=2)
    word = tl.arange(0, WORDS)
    tl.store(
        bits + (b * nodes + node)[:, None] * WORDS + word[None, :],
        words,
        mask=(node < nodes)[:, None],
    )


def ancestor_bits(ancestors: Tensor) -> Tensor:
    """See `naive.ancestor_bits`."""
    assert ancestors.stride(2) == 1
    B, N, _ = ancestors.shape
    bits = torch.empty(B, N, WORDS, dtype=torch.int32, device=ancestors.device)
    _ancestor_bits[(triton.cdiv(N, BLOCK_NODES), B)](
        ancestors,
        bits,
        N,
        *ancestors.stride()[:2],
        NODES=BLOCK_NODES,
        WORDS=WORDS,
        WORD_BITS=WORD_BITS,
        num_warps=2,
    )
    return bits
