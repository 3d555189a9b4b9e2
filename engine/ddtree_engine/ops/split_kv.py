"""Attention of a few query rows to a long context and to their own keys: kernels of two ops.

`tree_attention` and `drafter_attention` differ in which of its own keys a row sees, and in a window
over the context. The context is cut into pieces ("split-KV"), since a handful of rows alone would
leave most of a GPU idle; the rows' own keys are one more piece. A second kernel merges the pieces
by their log-sum-exp. The query heads that share a key head are rows of one tile.

Lengths are read on the device, and the grid does not depend on them: where a context is short, its
last pieces are empty and end at once. So a CUDA graph serves every length.

Rows of the context past a request's length are never read. An own key or value that is not finite
reaches the rows that see it and no others.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.device import multiprocessors, shared_memory

MAX_HEAD_DIM = 256
LONG_CONTEXT = 4096
"""Keys from which on larger tiles of rows pay: each tile reads the whole context."""
_BESIDES, _OWN = 4, 2
"""What a program does besides its keys, and the own keys of its rows, in blocks of a long context;
of all from 3 to 6 and 1 to 4 these choose pieces as measured on an H200."""
_MAX_PIECES = 64

_NEVER: tl.constexpr = tl.constexpr(float("-inf"))
_LOG2_E = 1.4426950408889634


class Own(IntEnum):
    """Which of its own keys a row sees."""

    ANCESTORS = 0
    EARLIER = 1
    ALL = 2


_ANCESTORS: tl.constexpr = tl.constexpr(int(Own.ANCESTORS))
_EARLIER: tl.constexpr = tl.constexpr(int(Own.EARLIER))


@triton.jit
def _fold(q, k, v, seen, largest, total, weighted, scale, PRECISION: tl.constexpr):
    """Take keys k [d, columns] and values v [columns, d] into a running softmax of base 2."""
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    scores = tl.where(seen, scores, _NEVER)
    new = tl.maximum(largest, tl.max(scores, axis=1))
    # A row that has seen nothing yet: anything finite keeps exp2 from -inf - -inf.
    origin = tl.where(new == _NEVER, 0.0, new)
    weights = tl.exp2(scores - origin[:, None])
    fade = tl.exp2(largest - origin)
    total = total * fade + tl.sum(weights, axis=1)
    weighted = weighted * fade[:, None]
    weighted += tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new, total, weighted


@triton.jit(do_not_specialize=["nodes", "pieces", "ancestors_batch", "ancestors_node"])
def _attend(
    q,
    k_context,
    v_context,
    lengths,
    k,
    v,
    ancestors,
    partial,
    log_sums,
    nodes,
    key_heads,
    pieces,
    head_dim,
    q_batch,
    q_node,
    q_head,
    kc_batch,
    kc_row,
    kc_head,
    vc_batch,
    vc_row,
    vc_head,
    k_batch,
    k_node,
    k_head,
    v_batch,
    v_node,
    v_head,
    ancestors_batch,
    ancestors_node,
    scale,
    WINDOW: tl.constexpr,
    OWN: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    piece = tl.program_id(1)
    b = tl.program_id(2) // key_heads
    head = tl.program_id(2) % key_heads
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    node = row // GROUP
    query_head = head * GROUP + row % GROUP
    column = tl.arange(0, COLUMNS)
    dim = tl.arange(0, DIM)
    some_row, some_dim = node < nodes, dim < head_dim
    length = tl.load(lengths + b).to(tl.int32)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - (WINDOW - 1), 0) // COLUMNS * COLUMNS
    # Whole blocks to each piece, as even as they go.
    blocks = tl.cdiv(length - first, COLUMNS)
    share = tl.cdiv(blocks, tl.maximum(pieces, 1)) * COLUMNS
    begin = first + piece * share
    end = tl.minimum(begin + share, length)
    some_key = (piece == pieces) | (begin < end)
    queries = tl.load(
        q + b * q_batch + node[:, None] * q_node + query_head[:, None] * q_head + dim[None, :],
        mask=some_row[:, None] & some_dim[None, :] & some_key,
        other=0.0,
    )
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, DIM], tl.float32)

    if piece < pieces:
        k_context += b.to(tl.int64) * kc_batch + head * kc_head
        v_context += b.to(tl.int64) * vc_batch + head * vc_head
        for start in range(begin, end, COLUMNS):
            position = start + column
            committed = position < end
            keys = tl.load(
                k_context + position[None, :].to(tl.int64) * kc_row + dim[:, None],
                mask=committed[None, :] & some_dim[:, None],
                other=0.0,
            )
            values = tl.load(
                v_context + position[:, None].to(tl.int64) * vc_row + dim[None, :],
                mask=committed[:, None] & some_dim[None, :],
                other=0.0,
            )
            seen = committed[None, :] & some_row[:, None]
            if WINDOW > 0:
                seen &= position[None, :] >= length + node[:, None] - (WINDOW - 1)
            largest, total, weighted = _fold(
                queries, keys, values, seen, largest, total, weighted, scale, PRECISION
            )
    else:
        for start in range(0, nodes, COLUMNS):
            other = start + column
            some_other = other < nodes
            keys = tl.load(
                k + b * k_batch + head * k_head + other[None, :] * k_node + dim[:, None],
                mask=some_other[None, :] & some_dim[:, None],
                other=0.0,
            )
            values = tl.load(
                v + b * v_batch + head * v_head + other[:, None] * v_node + dim[None, :],
                mask=some_other[:, None] & some_dim[None, :],
                other=0.0,
            )
            seen = some_other[None, :] & some_row[:, None]
            if OWN == _ANCESTORS:
                seen &= tl.load(
                    ancestors
                    + b * ancestors_batch
                    + node[:, None] * ancestors_node
                    + other[None, :],
                    mask=seen,
                    other=0,
                ).to(tl.int1)
            elif OWN == _EARLIER:
                seen &= other[None, :] <= node[:, None]
            # A weight of zero would not silence a value that is NaN. So it is taken out, and put
            # into the key: whoever sees it gets NaN from there. 0 * x is 0 only for a finite x.
            sound = tl.sum(values.to(tl.float32) * 0.0, axis=1) == 0.0
            values = tl.where(sound[:, None], values, 0.0)
            poison = tl.where(sound, 0.0, float("nan"))
            keys += poison[None, :].to(keys.dtype)
            largest, total, weighted = _fold(
                queries, keys, values, seen, largest, total, weighted, scale, PRECISION
            )

    at = ((tl.program_id(2) * (pieces + 1) + piece) * nodes * GROUP + row).to(tl.int64)
    tl.store(log_sums + at, tl.where(total == 0.0, _NEVER, largest + tl.log2(total)), mask=some_row)
    weighted /= tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        partial + at[:, None] * DIM + dim[None, :],
        weighted,
        mask=(some_row & (total != 0.0))[:, None] & some_dim[None, :],
    )


@triton.jit(do_not_specialize=["nodes", "pieces"])
def _merge(
    partial,
    log_sums,
    gate,
    row_scale,
    out,
    nodes,
    key_heads,
    pieces,
    head_dim,
    gate_batch,
    gate_node,
    gate_head,
    GATED: tl.constexpr,
    SCALED: tl.constexpr,
    GROUP: tl.constexpr,
    PIECES: tl.constexpr,
    DIM: tl.constexpr,
):
    row = tl.program_id(0)
    b = tl.program_id(1) // key_heads
    head = tl.program_id(1) % key_heads
    piece = tl.arange(0, PIECES)
    dim = tl.arange(0, DIM)
    rows = nodes * GROUP
    node = row // GROUP
    query_head = head * GROUP + row % GROUP
    if GATED:
        # Before the reductions, at which a load has to wait.
        if SCALED:
            factor = tl.load(row_scale + b * nodes + node)
        gates = tl.load(
            gate + b * gate_batch + node * gate_node + query_head * gate_head + dim,
            mask=dim < head_dim,
            other=0.0,
        )
    at = ((tl.program_id(1) * (pieces + 1) + piece) * rows + row).to(tl.int64)
    some_piece = piece <= pieces
    log_sum = tl.load(log_sums + at, mask=some_piece, other=float("-inf"))
    weight = tl.exp2(log_sum - tl.max(log_sum, axis=0))
    part = tl.load(
        partial + at[:, None] * DIM + dim[None, :],
        mask=(some_piece & (log_sum != _NEVER))[:, None] & (dim < head_dim)[None, :],
        other=0.0,
    )
    result = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    if GATED:
        gates = gates.to(tl.float32)
        if SCALED:
            gates *= factor
        result /= 1.0 + tl.exp(-gates)
    target = out + ((b * nodes + node) * key_heads * GROUP + query_head).to(tl.int64) * head_dim
    tl.store(target + dim, result.to(out.dtype.element_ty), mask=dim < head_dim)


class Tiling(NamedTuple):
    """How a launch cuts the work.

    Attributes:
        rows: query rows of a program (nodes times heads of a group), a power of two from 16 on.
        columns: keys that it takes at a time, likewise.
        pieces: parts that the context is cut into; 0 where there is none.
        warps: warps of a program.
        stages: blocks of keys and values in flight.
    """

    rows: int
    columns: int
    pieces: int
    warps: int
    stages: int


def choose_tiling(
    *, rows: int, row_bytes: int, context: int, heads: int, memory: int, processors: int
) -> Tiling:
    """The tiling of a launch: of those measured the fastest, or close to it.

    Args:
        rows: query rows that share a key head.
        row_bytes: of a query, key or value.
        context: keys of the longest context that the launch can have.
        heads: key heads of all requests.
        memory: shared memory of a block, in bytes.
        processors: of the GPU.
    """
    if rows <= 16:
        tile, warps = 16, 8
    elif row_bytes < 128:
        # From 64 rows on, products on SM 9.0 are other instructions, which Triton 3.6 gets wrong
        # for fewer columns than 64 of half precision (as `tree_gdn` found).
        tile, warps = 32, 4
    elif rows >= 512 or (rows > 64 and context > LONG_CONTEXT):
        tile, warps = 128, 8
    else:
        tile, warps = min(64, triton.next_power_of_2(rows)), 4
    # 16 KiB of keys and of values a block, three of each in flight, where that goes in; twice as
    # much, two of each, for several large tiles of rows that have much to read.
    wanted = max(16, (1 << 14) // row_bytes)
    large = ((2 * wanted, 2),) if rows > tile == 128 and context > LONG_CONTEXT else ()
    for columns, stages in (*large, (wanted, 3), (wanted, 2), (wanted, 1), (16, 1)):
        if (tile + 2 * stages * columns) * row_bytes <= memory:
            break
        if tile == 128:
            tile, warps = 64, 4
    blocks, tiles = -(-context // columns), heads * -(-rows // tile)
    if context > LONG_CONTEXT:
        pieces = _choose_pieces(blocks, tiles, processors)
    else:  # as many programs as run at the same time, one of each tile being for its own keys
        pieces = min(max(1, processors // tiles - 1), blocks, _MAX_PIECES - 1)
    return Tiling(tile, columns, pieces, warps, stages)


def _choose_pieces(blocks: int, tiles: int, processors: int) -> int:
    """Into how many pieces to cut a long context of `blocks`, for tiles of rows of all heads.

    Programs run in waves of one a multiprocessor. A wave takes as long as a piece, and as some
    blocks more for what else a program does. Programs for the rows' own keys, a tile each, come
    last, in a wave of their own where the last one has no room for them.
    """

    def cost(pieces: int) -> int:
        waves = -(-pieces * tiles // processors)
        own = _OWN + _BESIDES if (pieces + 1) * tiles > waves * processors else 0
        return waves * (-(-blocks // pieces) + _BESIDES) + own

    return min(range(1, min(blocks, _MAX_PIECES - 1) + 1), key=cost)


def supports(*tensors: Tensor) -> bool:
    """Whether the kernels take these queries, keys and values [B, rows, heads, d]."""
    return all(t.shape[3] <= MAX_HEAD_DIM and t.stride(3) == 1 for t in tensors)


def attend(
    q: Tensor,
    k_context: Tensor,
    v_context: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    own: Own,
    ancestors: Tensor | None,
    window: int | None,
    scale: float,
    gate: Tensor | None = None,
    row_scale: Tensor | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """Softmax attention of rows `q` over the first `lengths[b]` rows of a context and over `k`.

    Args:
        q: [B, N, HQ, d]; query head h reads key head h // (HQ / HKV).
        k_context: [B, T, HKV, d]; rows from `lengths[b]` on are not read.
        v_context: [B, T, HKV, d]
        lengths: [B] integers, <= T.
        k: [B, N, HKV, d]
        v: [B, N, HKV, d]
        own: which rows of `k` a query row sees; it always sees its own.
        ancestors: [B, N, N] bool for `Own.ANCESTORS`, [i, j] true where row i sees row j.
        window: how many tokens back a row sees, itself included, the first row standing at position
            `lengths[b]`; None sees all.
        scale: factor of the scores.
        gate: [B, N, HQ, d], whose sigmoid multiplies the result; its last dimension is contiguous.
        row_scale: [B, N], factor of each row of `gate`; None is 1.
        tiling: by default `choose_tiling`'s.

    Returns:
        [B, N, HQ, d]
    """
    assert (ancestors is not None) == (own is Own.ANCESTORS)
    B, N, HQ, d = q.shape
    HKV = k.shape[2]
    group = HQ // HKV
    if tiling is None:
        tiling = choose_tiling(
            rows=N * group,
            row_bytes=triton.next_power_of_2(d) * q.element_size(),
            context=min(k_context.shape[1], window + 32 if window else k_context.shape[1]),
            heads=B * HKV,
            memory=shared_memory(q.device),
            processors=multiprocessors(q.device),
        )
    dim = max(16, triton.next_power_of_2(d))
    partial_shape = (B * HKV, tiling.pieces + 1, N * group, dim)
    partial = torch.empty(partial_shape, dtype=torch.float32, device=q.device)
    log_sums = torch.empty(partial_shape[:3], dtype=torch.float32, device=q.device)
    out = torch.empty(B, N, HQ, d, dtype=q.dtype, device=q.device)
    seen = ancestors if ancestors is not None else lengths
    _attend[(triton.cdiv(N * group, tiling.rows), tiling.pieces + 1, B * HKV)](
        q,
        k_context,
        v_context,
        lengths,
        k,
        v,
        seen,
        partial,
        log_sums,
        N,
        HKV,
        tiling.pieces,
        d,
        *q.stride()[:3],
        *k_context.stride()[:3],
        *v_context.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *(seen.stride()[:2] if ancestors is not None else (0, 0)),
        scale * _LOG2_E,
        WINDOW=window or 0,
        OWN=int(own),
        GROUP=group,
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        DIM=dim,
        PRECISION="tf32x3",
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    _merge[(N * group, B * HKV)](
        partial,
        log_sums,
        out if gate is None else gate,
        out if row_scale is None else row_scale.contiguous(),
        out,
        N,
        HKV,
        tiling.pieces,
        d,
        *(out if gate is None else gate).stride()[:3],
        GATED=gate is not None,
        SCALED=gate is not None and row_scale is not None,
        GROUP=group,
        PIECES=triton.next_power_of_2(tiling.pieces + 1),
        DIM=dim,
    )
    return out
