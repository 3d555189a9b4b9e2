"""`few_rows_linear` on the GPU: the weight is the tall operand of the tensor cores' products.

A program multiplies some rows of the weight with all rows of x. Where a weight has too few rows to
keep the GPU busy, several programs share one such piece and each takes a part of the sum; the last
of them to end adds the parts, in order, so that a result is the same each time.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.device import multiprocessors, shared_memory

_NONE = 1 << 62
FASTER = ((7, 8192, 8192), (32, 14336, _NONE), (64, 16384, _NONE))
"""Up to so many rows of x the kernel was measured to be faster than cuBLAS with weights of at least
so many rows, or so many columns."""
BESIDE_ROWS = range(8, 66)
"""Rows of x whose product gains from running beside `tree_gdn`: one row has little to hide, and a
tree of more nodes takes all registers of a multiprocessor."""
_OTHERS = 72 << 10
"""Bytes of shared memory that `tree_gdn` and the kernel before it have at most."""
_BESIDE_TILE = 64
COLUMNS = 64
_MAX_PIECES = 8192


@triton.jit
def _store(out, out_row, total, row, rows, output, outputs, ONTO: tl.constexpr):
    at = row[None, :] * out_row + output[:, None]
    mask = (row < rows)[None, :] & (output < outputs)[:, None]
    if ONTO:
        total += tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _few_rows_linear(
    x,
    weight,
    out,
    partial,
    arrived,
    rows,
    outputs,
    width,
    share,
    weight_row,
    out_row,
    X_ROWS: tl.constexpr,
    MORE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARED: tl.constexpr,
    ONTO: tl.constexpr,
):
    piece = tl.program_id(0)
    output = piece * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, X_ROWS)
    column = tl.arange(0, COLUMNS)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, width)
    # A row past the last is read again; what comes of it is not written.
    some_output = tl.minimum(output, outputs - 1)
    weights = weight + some_output[:, None].to(tl.int64) * weight_row + column[None, :]
    values = x + row[None, :] * width + column[:, None]
    total = tl.zeros([OUTPUTS, X_ROWS], tl.float32)
    # Rows of x that a power of two has no room for are a second, small tile.
    more = X_ROWS + tl.arange(0, MORE if MORE > 0 else 16)
    more_values = x + more[None, :] * width + column[:, None]
    more_total = tl.zeros([OUTPUTS, MORE if MORE > 0 else 16], tl.float32)
    for start in range(begin, end, COLUMNS):
        tall = tl.load(weights + start, eviction_policy="evict_first")
        wide = tl.load(values + start, mask=(row < rows)[None, :], other=0.0)
        total = tl.dot(tall, wide, total)
        if MORE > 0:
            wide = tl.load(more_values + start, mask=(more < rows)[None, :], other=0.0)
            more_total = tl.dot(tall, wide, more_total)
    if SHARED:
        tl.static_assert(MORE == 0)
        at = row[None, :] * outputs + output[:, None]
        mask = (row < rows)[None, :] & (output < outputs)[:, None]
        parts = tl.num_programs(1)
        size = rows * outputs
        tl.store(partial + tl.program_id(1) * size + at, total, mask=mask)
        tl.debug_barrier()
        if tl.atomic_add(arrived + piece, 1, sem="acq_rel") == parts - 1:
            total = tl.zeros([OUTPUTS, X_ROWS], tl.float32)
            for part in range(parts):
                total += tl.load(partial + part * size + at, mask=mask, other=0.0)
            _store(out, out_row, total, row, rows, output, outputs, ONTO)
            tl.store(arrived + piece, 0)
    else:
        _store(out, out_row, total, row, rows, output, outputs, ONTO)
        if MORE > 0:
            _store(out, out_row, more_total, more, rows, output, outputs, ONTO)


class Tiling(NamedTuple):
    """How a launch cuts the work.

    Attributes:
        outputs: rows of the weight that a program has, 64 or 128.
        stages: blocks of both operands in flight.
        parts: programs that share a sum.
    """

    outputs: int
    stages: int
    parts: int


def choose_tiling(*, rows: int, outputs: int, inputs: int, memory: int, processors: int) -> Tiling:
    """The tiling of a launch: of those measured the fastest, or close to it.

    Args:
        rows: of x, a power of two.
        outputs: rows of the weight.
        inputs: columns of the weight.
        memory: shared memory of a block, in bytes.
        processors: of the GPU.
    """
    tile = 64 if rows <= 32 else 128
    stages = 3 if 32768 <= outputs <= 65536 else 6
    stages = max(1, min(stages, memory // (2 * COLUMNS * (tile + rows))))
    pieces = -(-outputs // tile)
    parts = 1
    if pieces < processors:
        parts = max(1, min(240 // pieces, inputs // (4 * COLUMNS), 8))
    return Tiling(tile, stages, parts)


@cache
def _arrived(device: torch.device) -> Tensor:
    """Counters that are 0 between launches; launches on one device follow one another."""
    return torch.zeros(_MAX_PIECES, dtype=torch.int32, device=device)


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes these tensors, and was measured to be faster than cuBLAS."""
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    faster = next((one for one in FASTER if rows <= one[0]), None)
    if faster is None:
        return False
    return (outputs >= faster[1] or inputs >= faster[2]) and takes(x, weight)


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel can multiply these at all."""
    outputs, inputs = weight.shape
    return (
        x.dtype == weight.dtype != torch.float32
        and x.is_contiguous()
        and weight.stride(1) == 1
        and inputs % COLUMNS == 0
        and outputs <= _MAX_PIECES * 64
        and weight.data_ptr() % 16 == 0
    )


def plan_beside(x: Tensor) -> Tiling | None:
    """How to multiply `x` [B, N, K] beside `tree_gdn`; None where it does not pay.

    Small tiles, as many of them in flight as shared memory has room for beside the recurrence.
    """
    rows = x.numel() // x.shape[-1]
    if rows not in BESIDE_ROWS:
        return None
    block = 2 * COLUMNS * (_BESIDE_TILE + sum(split_rows(rows)))
    stages = min(8, (shared_memory(x.device) - _OTHERS) // block)
    return Tiling(_BESIDE_TILE, stages, 1) if stages >= 4 else None


def split_rows(rows: int) -> tuple[int, int]:
    """Rows of the tile that holds so many of x, and of a second one: 65 are 64 and 16."""
    tile = max(16, triton.next_power_of_2(rows))
    return (tile // 2, 16) if rows > 64 and rows <= tile // 2 + 16 else (tile, 0)


def few_rows_linear(
    x: Tensor,
    weight: Tensor,
    *,
    out: Tensor | None = None,
    onto: bool = False,
    tiling: Tiling | None = None,
) -> Tensor:
    """See `naive.few_rows_linear`. `x` is contiguous, a row of the weight a multiple of 64.

    Args:
        x: as there.
        weight: as there.
        out: where the result goes, [rows, outputs] with contiguous rows; by default a new tensor.
        onto: whether it is added to what is in `out`.
        tiling: by default `choose_tiling`'s.
    """
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    x_rows, more = max(16, triton.next_power_of_2(rows)), 0
    if tiling is None:
        tiling = choose_tiling(
            rows=x_rows,
            outputs=outputs,
            inputs=inputs,
            memory=shared_memory(x.device),
            processors=multiprocessors(x.device),
        )
    if out is None:
        out = torch.empty(*x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
    parts, partial = tiling.parts, out
    if parts == 1:
        x_rows, more = split_rows(rows)
    else:
        partial = torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device)
    share = triton.cdiv(triton.cdiv(inputs, COLUMNS), parts) * COLUMNS
    _few_rows_linear[(triton.cdiv(outputs, tiling.outputs), parts)](
        x,
        weight,
        out,
        partial,
        _arrived(x.device),
        rows,
        outputs,
        inputs,
        share,
        weight.stride(0),
        out.stride(-2),
        X_ROWS=x_rows,
        MORE=more,
        OUTPUTS=tiling.outputs,
        COLUMNS=COLUMNS,
        SHARED=parts > 1,
        ONTO=onto,
        num_warps=4,
        num_stages=tiling.stages,
    )
    return out
