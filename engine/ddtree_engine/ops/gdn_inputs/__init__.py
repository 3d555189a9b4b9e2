"""From a recurrent layer's projections to what the delta rule takes: convolution, norms, gates."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.gdn_inputs import vectorized
from ddtree_engine.ops.gdn_inputs.result import GdnInputs

__all__ = ["GdnInputs", "gdn_inputs"]


def gdn_inputs(
    x: Tensor,
    tail: Tensor,
    taps: Tensor,
    weight: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    key_heads: int,
    key_dim: int,
    eps: float,
    kept: Tensor | None = None,
    row_scale: Tensor | None = None,
) -> GdnInputs:
    """See `naive.gdn_inputs`."""
    tensors = (x, tail, taps, weight, a, b, A_log, dt_bias)
    if runs_kernel(x, tail, weight, a, b, A_log, dt_bias, row_scale):
        from ddtree_engine.ops.gdn_inputs import kernel

        if kernel.supports(x, tail, a, b, kept):
            with torch.cuda.device(x.device):
                return kernel.gdn_inputs(
                    *tensors,
                    key_heads=key_heads,
                    key_dim=key_dim,
                    eps=eps,
                    kept=kept,
                    row_scale=row_scale,
                )
    return vectorized.gdn_inputs(
        *tensors, key_heads=key_heads, key_dim=key_dim, eps=eps, kept=kept, row_scale=row_scale
    )
