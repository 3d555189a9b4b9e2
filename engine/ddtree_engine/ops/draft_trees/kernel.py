"""`draft_trees` on the GPU: a best-first search in one warp's registers, then all nodes at once.

The search is the heap's of `ddtree_engine.tree.best_first` with a row of slots for a heap: the best
entry becomes a node, its next sibling takes its slot and its first child a new one.

Ties need the lexicographic order of rank tuples, which is kept as a place a slot. When a prefix
leaves, none of its extensions is there yet, so of all that is there its first child comes next
after it, and its next sibling next after that: the child takes its place, the sibling the one
behind, and what stood behind moves by one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.draft_trees.result import DraftTrees
from ddtree_engine.tree import LOG_PROB_FLOOR, MAX_BUDGET, MAX_DEPTH, MAX_TOPK, SCORE_BITS

BLOCK_NODES = 16

_UNIT: tl.constexpr = tl.constexpr(2.0**SCORE_BITS)
_FLOOR: tl.constexpr = tl.constexpr(LOG_PROB_FLOOR)
# Fields of an entry, from the lowest bits on: rank, depth, parent; and of its order: slot, place.
_RANK_BITS: tl.constexpr = tl.constexpr(MAX_TOPK.bit_length())
_DEPTH_BITS: tl.constexpr = tl.constexpr(MAX_DEPTH.bit_length())
_NODE_BITS: tl.constexpr = tl.constexpr((MAX_BUDGET + 1).bit_length())
_RANK_MASK: tl.constexpr = tl.constexpr(2 ** MAX_TOPK.bit_length() - 1)
_DEPTH_MASK: tl.constexpr = tl.constexpr(2 ** MAX_DEPTH.bit_length() - 1)
_NODE_MASK: tl.constexpr = tl.constexpr(2 ** (MAX_BUDGET + 1).bit_length() - 1)
# No score is this low: that of an empty slot.
_NONE: tl.constexpr = tl.constexpr(-(2**63))
_LEAST: tl.constexpr = tl.constexpr(-(2**31))
_MOST: tl.constexpr = tl.constexpr(2**31 - 1)
# Added to and taken from a number below 2**51, it leaves the nearest integer, even ones first.
_ROUND: tl.constexpr = tl.constexpr(1.5 * 2**52)


@triton.jit
def _score(log_prob):
    """A log-probability in units of 2**-44 nat, as `ddtree_engine.tree.fixed_point` has it."""
    nats = log_prob.to(tl.float64)
    nats = tl.where(nats > _FLOOR, nats, _FLOOR)  # NaN is not
    units = tl.where(nats < 0.0, nats, 0.0) * _UNIT
    rounded = (units + _ROUND) - _ROUND
    # What is larger has no fraction.
    return tl.where(units > -(2.0**51), rounded, units).to(tl.int64)


@triton.jit
def _best(score):
    """The highest score, and where it is; in halves of 32 bits, which a warp compares at once."""
    high = (score >> 32).to(tl.int32)
    low = score.to(tl.int32) ^ _LEAST  # compares without a sign
    best_high = tl.max(high, axis=0)
    best_low = tl.max(tl.where(high == best_high, low, _LEAST), axis=0)
    best = (best_high.to(tl.int64) << 32) | ((best_low ^ _LEAST).to(tl.int64) & 0xFFFFFFFF)
    return best, (high == best_high) & (low == best_low)


@triton.jit(do_not_specialize=["size", "depth_limit"])
def _search(
    anchors,
    log_probs,
    ids,
    budgets,
    widths,
    scores,
    tokens,
    parents,
    depths,
    sizes,
    size,
    depth_limit,
    candidates,
    log_probs_batch,
    log_probs_depth,
    ids_batch,
    ids_depth,
    SLOTS: tl.constexpr,
):
    b = tl.program_id(0)
    log_probs += b * log_probs_batch
    ids += b * ids_batch
    scores += b * depth_limit * candidates
    tokens += b * size
    parents += b * size
    depths += b * size
    width = tl.load(widths + b).to(tl.int32)
    wanted = tl.minimum(tl.load(budgets + b), size - 1).to(tl.int32)
    tl.store(tokens, tl.load(anchors + b))
    tl.store(parents, -1)
    tl.store(depths, 0)
    for start in range(0, depth_limit * candidates, SLOTS):
        at = start + tl.arange(0, SLOTS)
        some = at < depth_limit * candidates
        level, rank = at // candidates, at % candidates
        log_prob = tl.load(log_probs + level * log_probs_depth + rank, mask=some, other=0.0)
        tl.store(scores + at, _score(log_prob), mask=some)
    tl.debug_barrier()

    slot = tl.arange(0, SLOTS)
    # The one entry at the start: rank 0 at depth 1, below the root.
    score = tl.full([SLOTS], _NONE, tl.int64)
    place = tl.zeros([SLOTS], tl.int32)
    entry = tl.full([SLOTS], 1, tl.int32) << _RANK_BITS
    if depth_limit > 0:
        score = tl.where(slot == 0, tl.load(scores), score)
    node = tl.full((), 1, tl.int32)
    best, leading = _best(score)
    while (node <= wanted) & (best != _NONE):
        order = (place << _NODE_BITS) | slot
        order = tl.min(tl.where(leading, order, _MOST), axis=0)
        taken, front = order & _NODE_MASK, order >> _NODE_BITS
        taken_here = slot == taken
        first = tl.sum(tl.where(taken_here, entry, 0), axis=0)
        rank = first & _RANK_MASK
        depth = (first >> _RANK_BITS) & _DEPTH_MASK
        tl.store(tokens + node, tl.load(ids + (depth - 1) * ids_depth + rank))
        tl.store(parents + node, (first >> _RANK_BITS >> _DEPTH_BITS).to(tl.int64))
        tl.store(depths + node, depth.to(tl.int64))

        row = scores + (depth - 1) * candidates
        has_sibling = rank + 1 < width
        has_child = depth < depth_limit
        here = tl.load(row + rank)
        next_to = tl.load(row + rank + 1, mask=has_sibling, other=0)
        under = tl.load(row + candidates, mask=has_child, other=0)
        sibling = tl.where(has_sibling, best - here + next_to, _NONE)
        child = tl.where(has_child, best + under, _NONE)
        below = ((node << _DEPTH_BITS) | (depth + 1)) << _RANK_BITS
        place += tl.where(place > front, 1, 0)
        new = slot == node
        score = tl.where(taken_here, sibling, tl.where(new, child, score))
        place = tl.where(taken_here, front + 1, tl.where(new, front, place))
        entry = tl.where(taken_here, entry + 1, tl.where(new, below, entry))
        node += 1
        best, leading = _best(score)
    tl.store(sizes + b, node.to(tl.int64))
    while node < size:
        tl.store(tokens + node, 0)
        tl.store(parents + node, 0)
        tl.store(depths + node, 1)
        node += 1


@triton.jit(do_not_specialize=["size", "depth_limit"])
def _lay_out(
    parents,
    ancestors,
    taps,
    size,
    depth_limit,
    TAPS: tl.constexpr,
    NODES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    b = tl.program_id(1)
    parents += b * size
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    some = node < size
    column = tl.arange(0, COLUMNS)
    seen = node[:, None] == column[None, :]
    above = node.to(tl.int64)
    for _ in range(depth_limit):
        above = tl.load(parents + above, mask=some & (above >= 0), other=-1)
        seen |= above[:, None] == column[None, :]
    row = b * size + node
    tl.store(
        ancestors + row[:, None].to(tl.int64) * size + column[None, :],
        seen,
        mask=some[:, None] & (column < size)[None, :],
    )
    above = node.to(tl.int64)
    for tap in tl.static_range(TAPS):
        tl.store(taps + row * TAPS + (TAPS - 1 - tap), TAPS - 1 + above, mask=some)
        over = tl.load(parents + above, mask=some & (above > 0), other=0)
        above = tl.where(above > 0, over, above - 1)


def supports(log_probs: Tensor, ids: Tensor, budget: int) -> bool:
    """Whether the kernels take these candidates."""
    return (
        log_probs.dtype == torch.float32
        and log_probs.shape[1] <= MAX_DEPTH
        and 1 <= log_probs.shape[2] <= MAX_TOPK
        and budget <= MAX_BUDGET
        and log_probs.stride(2) == 1
        and ids.stride(2) == 1
    )


def draft_trees(
    anchors: Tensor,
    log_probs: Tensor,
    ids: Tensor,
    budgets: Tensor,
    widths: Tensor,
    *,
    budget: int,
    conv_kernel: int,
) -> DraftTrees:
    """See `naive.draft_trees`. `log_probs` is float32."""
    B, L, K = log_probs.shape
    N, device = budget + 1, log_probs.device
    tokens = torch.empty(B, N, dtype=torch.int64, device=device)
    parents, depths = torch.empty_like(tokens), torch.empty_like(tokens)
    sizes = torch.empty(B, dtype=torch.int64, device=device)
    ancestors = torch.empty(B, N, N, dtype=torch.bool, device=device)
    taps = torch.empty(B, N, conv_kernel, dtype=torch.int64, device=device)
    scores = torch.empty(B, L, K, dtype=torch.int64, device=device)
    # The child of the last node is never looked at: a slot for each node but one is enough.
    slots = max(32, triton.next_power_of_2(budget))
    _search[(B,)](
        anchors,
        log_probs,
        ids,
        budgets,
        widths,
        scores,
        tokens,
        parents,
        depths,
        sizes,
        N,
        L,
        K,
        *log_probs.stride()[:2],
        *ids.stride()[:2],
        SLOTS=slots,
        num_warps=max(1, slots // 512),
    )
    _lay_out[(triton.cdiv(N, BLOCK_NODES), B)](
        parents,
        ancestors,
        taps,
        N,
        L,
        TAPS=conv_kernel,
        NODES=BLOCK_NODES,
        COLUMNS=triton.next_power_of_2(N),
        num_warps=2,
    )
    return DraftTrees(tokens, parents, depths, sizes, ancestors, taps)
