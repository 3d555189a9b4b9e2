"""The output gate of an attention layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.sigmoid_gate import vectorized

__all__ = ["sigmoid_gate"]


def sigmoid_gate(x: Tensor, gate: Tensor, *, row_scale: Tensor | None = None) -> Tensor:
    """See `naive.sigmoid_gate`."""
    if runs_kernel(x, gate, row_scale):
        from ddtree_engine.ops.sigmoid_gate import kernel

        if kernel.supports(x, gate):
            with torch.cuda.device(x.device):
                return kernel.sigmoid_gate(x, gate, row_scale=row_scale)
    return vectorized.sigmoid_gate(x, gate, row_scale=row_scale)
