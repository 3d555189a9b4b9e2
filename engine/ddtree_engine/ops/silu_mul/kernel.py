"""`silu_mul` in one pass, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.overlap import ahead_of, ask_ahead, dependent, follow, follow_without_waiting

BLOCK = 1024


@triton.jit
def _silu_mul(
    x,
    out,
    size,
    ahead,
    ahead_rows,
    ahead_stride,
    blocks,
    BLOCK: tl.constexpr,
    ASM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if tl.program_id(0) >= blocks:
        follow_without_waiting(DEPENDENT)
        more = tl.num_programs(0) - blocks
        program = tl.program_id(1) * more + tl.program_id(0) - blocks
        ask_ahead(ahead, ahead_rows, ahead_stride, program, more * tl.num_programs(1), ASM)
        return
    follow(DEPENDENT)
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    gate = tl.load(x + row * 2 * size + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + row * 2 * size + size + at, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * value
    tl.store(out + row * size + at, result.to(out.dtype.element_ty), mask=mask)


def silu_mul(x: Tensor, ahead: Tensor | None = None) -> Tensor:
    """See `naive.silu_mul`. `x` is contiguous."""
    size = x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], size, dtype=x.dtype, device=x.device)
    blocks, rows = triton.cdiv(size, BLOCK), out.numel() // size
    more, asked = ahead_of(ahead, x)
    _silu_mul[(blocks + triton.cdiv(more, rows), rows)](
        x,
        out,
        size,
        blocks=blocks,
        BLOCK=BLOCK,
        **asked,
        **dependent(x.device),
        num_warps=4,
    )
    return out
