"""`qk_norm_rope` in one launch: each program has one head of one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _qk_norm_rope(
    q,
    k,
    v,
    q_weight,
    k_weight,
    cos,
    sin,
    row_scale,
    q_out,
    k_out,
    v_out,
    query_heads,
    key_heads,
    weight_heads,
    size,
    rotated,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    eps,
    SCALED: tl.constexpr,
    ZERO_CENTERED: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0)
    at = tl.arange(0, SIZE)
    mask = at < size
    if SCALED:
        scale = tl.load(row_scale + row)
    if head >= query_heads + key_heads:
        head -= query_heads + key_heads
        copied = tl.load(v + row * v_row + head * v_head + at, mask=mask, other=0.0)
        if SCALED:
            copied = (copied.to(tl.float32) * scale).to(v_out.dtype.element_ty)
        tl.store(v_out + (row * key_heads + head) * size + at, copied, mask=mask)
        return
    if head < query_heads:
        source = q + row * q_row + head * q_head
        target = q_out + (row * query_heads + head) * size
        weight = q_weight
    else:
        source = k + row * k_row + (head - query_heads) * k_head
        target = k_out + (row * key_heads + head - query_heads) * size
        weight = k_weight + (head - query_heads) // weight_heads * size
    half = rotated // 2
    # The dimension that turns against this one; its own where nothing turns.
    other = tl.where(at < half, at + half, tl.where(at < rotated, at - half, at))
    values = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
    across = tl.load(source + other, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    factor_across = tl.load(weight + other, mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        values *= scale
        across *= scale
    if ZERO_CENTERED:
        factor += 1.0
        factor_across += 1.0
    root = tl.sqrt(tl.sum(values * values, axis=0) / size + eps)
    kind = q_out.dtype.element_ty
    values = (values / root * factor).to(kind).to(tl.float32)
    across = (across / root * factor_across).to(kind).to(tl.float32)
    turns = at < rotated
    c = tl.load(cos + row * rotated + at, mask=turns, other=1.0)
    s = tl.load(sin + row * rotated + at, mask=turns, other=0.0)
    result = values * c + tl.where(at < half, -across, across) * s
    tl.store(target + at, result.to(kind), mask=mask)


def supports(q: Tensor, k: Tensor, v: Tensor, cos: Tensor) -> bool:
    """Whether the kernel takes these strides; if not, `vectorized.py` does."""
    heads = all(
        x.stride(3) == 1 and (x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1))
        for x in (q, k, v)
    )
    return heads and cos.is_contiguous() and cos.dtype == torch.float32


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    *,
    zero_centered: bool,
    row_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `naive.qk_norm_rope`."""
    B, N, HQ, d = q.shape
    HKV = k.shape[2]
    q_out = torch.empty(B, N, HQ, d, dtype=q.dtype, device=q.device)
    k_out = torch.empty(B, N, HKV, d, dtype=k.dtype, device=k.device)
    v_out = torch.empty_like(k_out)
    _qk_norm_rope[(HQ + 2 * HKV, B * N)](
        q,
        k,
        v,
        q_weight,
        k_weight,
        cos,
        sin,
        q if row_scale is None else row_scale.contiguous(),
        q_out,
        k_out,
        v_out,
        HQ,
        HKV,
        HKV // (k_weight.numel() // d),
        d,
        cos.shape[-1],
        *q.stride()[1:3],
        *k.stride()[1:3],
        *v.stride()[1:3],
        eps,
        SCALED=row_scale is not None,
        ZERO_CENTERED=zero_centered,
        SIZE=triton.next_power_of_2(d),
        num_warps=1,
    )
    return q_out, k_out, v_out
