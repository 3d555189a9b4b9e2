"""`gated_norm` in one pass over its inputs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_ROWS = 8


@triton.jit(do_not_specialize=["rows"])
def _gated_norm(
    x,
    gate,
    weight,
    row_scale,
    out,
    rows,
    heads,
    dims,
    x_row,
    x_head,
    gate_row,
    gate_head,
    eps,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    node, head = row // heads, row % heads
    some_dim = dim < dims
    mask = (row < rows)[:, None] & some_dim[None, :]
    if SCALED:
        factor = tl.load(row_scale + node, mask=row < rows, other=0.0)
    values = tl.load(
        x + node[:, None] * x_row + head[:, None] * x_head + dim[None, :], mask=mask, other=0.0
    ).to(tl.float32)
    gates = tl.load(
        gate + node[:, None] * gate_row + head[:, None] * gate_head + dim[None, :],
        mask=mask,
        other=0.0,
    ).to(tl.float32)
    scale = tl.load(weight + dim, mask=some_dim, other=0.0).to(tl.float32)
    if SCALED:
        gates *= factor[:, None]
    root = tl.sqrt(tl.sum(values * values, axis=1) / dims + eps)
    result = values / root[:, None] * scale[None, :] * gates / (1.0 + tl.exp(-gates))
    tl.store(out + row[:, None] * dims + dim[None, :], result.to(out.dtype.element_ty), mask=mask)


def supports(x: Tensor, gate: Tensor) -> bool:
    """Whether the kernel takes these strides: heads contiguous, requests after one another."""
    return all(t.stride(3) == 1 and t.stride(0) == t.shape[1] * t.stride(1) for t in (x, gate))


def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, row_scale: Tensor | None = None
) -> Tensor:
    """See `naive.gated_norm`."""
    B, N, H, d = x.shape
    out = torch.empty(B, N, H, d, dtype=gate.dtype, device=x.device)
    _gated_norm[(triton.cdiv(B * N * H, BLOCK_ROWS),)](
        x,
        gate,
        weight,
        x if row_scale is None else row_scale.contiguous(),
        out,
        B * N * H,
        H,
        d,
        *x.stride()[1:3],
        *gate.stride()[1:3],
        eps,
        SCALED=row_scale is not None,
        ROWS=BLOCK_ROWS,
        DIM=triton.next_power_of_2(d),
        num_warps=4,
    )
    return out
