"""`add_norm` in one launch, a row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SIZE = 16384


@triton.jit
def _add_norm(
    x,
    residual,
    weight,
    normed,
    total,
    size,
    eps,
    ADDS: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, SIZE)
    mask = at < size
    factor = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    if ZERO_CENTERED:
        factor += 1.0
    values = tl.load(x + row + at, mask=mask, other=0.0)
    if ADDS:
        added = values.to(tl.float32) + tl.load(residual + row + at, mask=mask, other=0.0).to(
            tl.float32
        )
        values = added.to(x.dtype.element_ty)
        tl.store(total + row + at, values, mask=mask)
    wide = values.to(tl.float32)
    root = tl.sqrt(tl.sum(wide * wide, axis=0) / size + eps)
    tl.store(normed + row + at, (wide / root * factor).to(normed.dtype.element_ty), mask=mask)


def supports(x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernel takes this size and these strides; if not, `vectorized.py` does."""
    whole = residual is None or residual.is_contiguous()
    return whole and x.is_contiguous() and x.shape[-1] <= MAX_SIZE


def add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    """See `naive.add_norm`."""
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    normed = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    _add_norm[(x.numel() // size,)](
        x,
        x if residual is None else residual,
        weight,
        normed,
        total,
        size,
        eps,
        ADDS=residual is not None,
        ZERO_CENTERED=zero_centered,
        SIZE=block,
        num_warps=min(16, max(4, block // 512)),
    )
    return normed, total
