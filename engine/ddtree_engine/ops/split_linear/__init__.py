"""A matrix product as parts of a sum, for whoever adds to it anyway."""

from __future__ import annotations

from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.few_rows_linear import few_rows_linear
from ddtree_engine.ops.split_linear import vectorized

__all__ = ["split_linear"]

SPLIT_ROWS = range(8, 161)
"""Rows of `x` for which two parts were measured to be faster than one."""


def split_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `naive.split_linear`. On a CPU, and where it would not pay, there is one part."""
    outputs, inputs = weight.shape
    pays = (
        runs_kernel(x, weight)
        and x.numel() // inputs in SPLIT_ROWS
        and x.dtype == weight.dtype
        and x.element_size() == 2
        # A weight of few rows keeps few multiprocessors busy; one of many needs no help.
        and inputs >= 2 * outputs
        and inputs % 16 == 0
        and x.is_contiguous()
    )
    return vectorized.split_linear(x, weight, parts=2) if pays else few_rows_linear(x, weight)[None]
