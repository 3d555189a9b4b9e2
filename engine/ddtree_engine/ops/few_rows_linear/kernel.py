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

MAX_ROWS = 64
"""Rows of x up to which the kernel was measured to be faster than cuBLAS."""
LARGE = 8192
"""Rows or columns that a weight must have for that; a smaller one is cuBLAS's."""
COLUMNS = 64
_MAX_PIECES = 8192


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
    X_ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARED: tl.constexpr,
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
    for start in range(begin, end, COLUMNS):
        tall = tl.load(weights + start, eviction_policy="evict_first")
        wide = tl.load(values + start, mask=(row < rows)[None, :], other=0.0)
        total = tl.dot(tall, wide, total)
    at = row[None, :] * outputs + output[:, None]
    mask = (row < rows)[None, :] & (output < outputs)[:, None]
    if SHARED:
        parts = tl.num_programs(1)
        size = rows * outputs
        tl.store(partial + tl.program_id(1) * size + at, total, mask=mask)
        tl.debug_barrier()
        if tl.atomic_add(arrived + piece, 1, sem="acq_rel") == parts - 1:
            total = tl.zeros([OUTPUTS, X_ROWS], tl.float32)
            for part in range(parts):
                total += tl.load(partial + part * size + at, mask=mask, other=0.0)
            tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)
            tl.store(arrived + piece, 0)
    else:
        tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


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
    rows = x.numel() // x.shape[-1]
    outputs, inputs = weight.shape
    return (
        rows <= MAX_ROWS
        and max(outputs, inputs) >= LARGE
        and x.dtype == weight.dtype != torch.float32
        and x.is_contiguous()
        and weight.stride(1) == 1
        and inputs % COLUMNS == 0
        and outputs <= _MAX_PIECES * 64
        and weight.data_ptr() % 16 == 0
    )


def few_rows_linear(x: Tensor, weight: Tensor, *, tiling: Tiling | None = None) -> Tensor:
    """See `naive.few_rows_linear`. `x` is contiguous, a row of the weight a multiple of 64."""
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    x_rows = max(16, triton.next_power_of_2(rows))
    if tiling is None:
        tiling = choose_tiling(
            rows=x_rows,
            outputs=outputs,
            inputs=inputs,
            memory=shared_memory(x.device),
            processors=multiprocessors(x.device),
        )
    out = torch.empty(*x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
    parts, partial = tiling.parts, out
    if parts > 1:
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
        X_ROWS=x_rows,
        OUTPUTS=tiling.outputs,
        COLUMNS=COLUMNS,
        SHARED=parts > 1,
        num_warps=4,
        num_stages=tiling.stages,
    )
    return out
