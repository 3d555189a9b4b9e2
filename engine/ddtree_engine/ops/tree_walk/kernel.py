"""`tree_walk` on the GPU: a request's tree in the registers of one warp.

Token ids fit 32 bits, which a warp reduces in one instruction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.tree_walk.result import Walk


@triton.jit(do_not_specialize=["size", "choices_row", "tokens_row", "parents_row"])
def _tree_walk(
    choices,
    tokens,
    parents,
    sizes,
    path,
    lengths,
    bonus,
    size,
    choices_row,
    tokens_row,
    parents_row,
    DEPTH: tl.constexpr,
    NODES: tl.constexpr,
):
    b = tl.program_id(0)
    index = tl.arange(0, NODES)
    some = index < size
    choice = tl.load(choices + b * choices_row + index, mask=some, other=0).to(tl.int32)
    token = tl.load(tokens + b * tokens_row + index, mask=some, other=0).to(tl.int32)
    parent = tl.load(parents + b * parents_row + index, mask=some, other=-1).to(tl.int32)
    real = some & (index > 0) & (index < tl.load(sizes + b))
    node = 0
    going = 1
    length = 1
    tl.store(path + b * (DEPTH + 1), 0)
    for step in tl.static_range(1, DEPTH + 1):
        wanted = tl.sum(tl.where(index == node, choice, 0), axis=0)
        child = tl.max(tl.where(real & (parent == node) & (token == wanted), index, 0), axis=0)
        going = tl.where(child > 0, going, 0)
        node = tl.where(going > 0, child, node)
        length += going
        tl.store(path + b * (DEPTH + 1) + step, tl.where(going > 0, child, 0))
    tl.store(lengths + b, length)
    tl.store(bonus + b, tl.sum(tl.where(index == node, choice, 0), axis=0).to(tl.int64))


def tree_walk(
    choices: Tensor, tokens: Tensor, parents: Tensor, sizes: Tensor, *, depth: int
) -> Walk:
    """See `naive.tree_walk`. The last dimension of each tensor is contiguous."""
    B, N = tokens.shape
    device = tokens.device
    path = torch.empty(B, depth + 1, dtype=torch.int64, device=device)
    lengths = torch.empty(B, dtype=torch.int64, device=device)
    bonus = torch.empty_like(lengths)
    size = max(32, triton.next_power_of_2(N))
    _tree_walk[(B,)](
        choices,
        tokens,
        parents,
        sizes,
        path,
        lengths,
        bonus,
        N,
        choices.stride(0),
        tokens.stride(0),
        parents.stride(0),
        DEPTH=depth,
        NODES=size,
        num_warps=max(1, size // 256),
    )
    return Walk(path, lengths, bonus)
