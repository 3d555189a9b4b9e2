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
    part,
    eps,
    PARTS: tl.constexpr,
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
    wide = tl.load(x + row + at, mask=mask, other=0.0).to(tl.float32)
    for other in tl.static_range(1, PARTS):
        wide += tl.load(x + other * part + row + at, mask=mask, other=0.0)
    if ADDS:
        wide += tl.load(residual + row + at, mask=mask, other=0.0).to(tl.float32)
    if ADDS or PARTS > 1:
        values = wide.to(total.dtype.element_ty)
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
    parts = len(x) if x.ndim == 4 else 1
    dtype = x.dtype
    if parts > 1:
        dtype = weight.dtype if residual is None else residual.dtype
    x = x[0] if x.ndim == 4 and parts == 1 else x
    normed = torch.empty(x.shape[-3:], dtype=dtype, device=x.device)
    total = x if residual is None and parts == 1 else torch.empty_like(normed)
    _add_norm[(normed.numel() // size,)](
        x,
        x if residual is None else residual,
        weight,
        normed,
        total,
        size,
        normed.numel(),
        eps,
        PARTS=parts,
        ADDS=residual is not None,
        ZERO_CENTERED=zero_centered,
        SIZE=block,
        num_warps=min(16, max(4, block // 512)),
    )
    return normed, total
