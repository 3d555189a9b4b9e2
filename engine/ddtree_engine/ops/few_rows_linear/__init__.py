"""A matrix product of few rows with a large weight, which is all about reading the weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.few_rows_linear import vectorized

__all__ = ["few_rows_linear"]


def few_rows_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `naive.few_rows_linear`. Any number of rows is right; many go to cuBLAS."""
    if runs_kernel(x, weight):
        from ddtree_engine.ops.few_rows_linear import kernel

        if kernel.pays(x, weight):
            with torch.cuda.device(x.device):
                return kernel.few_rows_linear(x, weight)
    return vectorized.few_rows_linear(x, weight)
