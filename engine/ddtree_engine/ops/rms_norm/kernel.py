"""`rms_norm` in one launch, a row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SIZE = 16384


@triton.jit
def _rms_norm(x, weight, out, size, eps, ZERO_CENTERED: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, SIZE)
    mask = at < size
    factor = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    if ZERO_CENTERED:
        factor += 1.0
    values = tl.load(x + row + at, mask=mask, other=0.0).to(tl.float32)
    root = tl.sqrt(tl.sum(values * values, axis=0) / size + eps)
    tl.store(out + row + at, (values / root * factor).to(out.dtype.element_ty), mask=mask)


def supports(x: Tensor) -> bool:
    """Whether the kernel takes this size and these strides; if not, `vectorized.py` does."""
    return x.is_contiguous() and x.shape[-1] <= MAX_SIZE


def choose_warps(block: int) -> int:
    """Warps of a program that has a row of `block` numbers, a power of two."""
    return min(16, max(4, block // 512))


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool) -> Tensor:
    """See `naive.rms_norm`."""
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    out = torch.empty_like(x)
    _rms_norm[(x.numel() // size,)](
        x,
        weight,
        out,
        size,
        eps,
        ZERO_CENTERED=zero_centered,
        SIZE=block,
        num_warps=choose_warps(block),
    )
    return out
