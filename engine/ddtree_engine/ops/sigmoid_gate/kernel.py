"""`sigmoid_gate` in one pass; the gate may be a slice of a wider projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sigmoid_gate(
    x,
    gate,
    row_scale,
    out,
    heads,
    size,
    gate_row,
    gate_head,
    SCALED: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0)
    at = tl.arange(0, SIZE)
    mask = at < size
    source = (row * heads + head) * size + at
    if SCALED:
        factor = tl.load(row_scale + row)
    gates = tl.load(gate + row * gate_row + head * gate_head + at, mask=mask, other=0.0)
    values = tl.load(x + source, mask=mask, other=0.0).to(tl.float32)
    gates = gates.to(tl.float32)
    if SCALED:
        gates *= factor
    result = values / (1.0 + tl.exp(-gates))
    tl.store(out + source, result.to(out.dtype.element_ty), mask=mask)


def supports(x: Tensor, gate: Tensor) -> bool:
    """Whether the kernel takes these strides; if not, `vectorized.py` does."""
    rows = gate.stride(0) == gate.shape[1] * gate.stride(1)
    return x.is_contiguous() and gate.stride(3) == 1 and rows


def sigmoid_gate(x: Tensor, gate: Tensor, *, row_scale: Tensor | None = None) -> Tensor:
    """See `naive.sigmoid_gate`."""
    B, N, H, d = x.shape
    out = torch.empty_like(x)
    _sigmoid_gate[(H, B * N)](
        x,
        gate,
        x if row_scale is None else row_scale.contiguous(),
        out,
        H,
        d,
        gate.stride(1),
        gate.stride(2),
        SCALED=row_scale is not None,
        SIZE=triton.next_power_of_2(d),
        num_warps=1,
    )
    return out
