"""`inverse_rms` in one launch, a row a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

MAX_SIZE = 16384


@triton.jit
def _inverse_rms(x, out, size, eps, SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    values = tl.load(x + row.to(tl.int64) * size + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(out + row, 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / size + eps))


def supports(x: Tensor) -> bool:
    """Whether the kernel takes this size and these strides; if not, `vectorized.py` does."""
    return x.is_contiguous() and x.shape[-1] <= MAX_SIZE


def inverse_rms_into(out: Tensor, x: Tensor, eps: float) -> None:
    """Write `naive.inverse_rms` to `out` [B, N]."""
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _inverse_rms[(out.numel(),)](
        x, out, size, eps, SIZE=block, num_warps=min(8, max(4, block // 512))
    )
