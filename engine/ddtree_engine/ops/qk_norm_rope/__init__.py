"""Per-head norm and rotation of an attention layer's queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.qk_norm_rope import vectorized

__all__ = ["qk_norm_rope"]


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
    tensors = (q, k, v, q_weight, k_weight, cos, sin)
    if runs_kernel(*tensors, row_scale):
        from ddtree_engine.ops.qk_norm_rope import kernel

        if kernel.supports(q, k, v, cos):
            with torch.cuda.device(q.device):
                return kernel.qk_norm_rope(
                    *tensors, eps, zero_centered=zero_centered, row_scale=row_scale
                )
    return vectorized.qk_norm_rope(*tensors, eps, zero_centered=zero_centered, row_scale=row_scale)
