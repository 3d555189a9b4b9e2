"""A matrix product of few rows with a large weight, which is all about reading the weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.few_rows_linear import vectorized

__all__ = [
    "choose_groups",
    "few_rows_linear",
    "few_rows_linear_into",
    "few_rows_linear_onto",
    "plan_beside",
]

_TALL_ROWS = range(129, 145)
_TALL_OUTPUTS = range(32768, 65537)
"""Rows of x, and of a weight, of which a batch of four products was measured to be faster than one:
100 instead of 107 µs for 129 and 34816 x 5120 on an H200."""
_WIDE_ROWS = (range(8, 96), range(112, 129))
"""Rows of x for which two products are faster than one where the weight is much wider than tall:
cuBLAS would cut each sum, and add the parts in a kernel of its own. 46 instead of 51 µs for 65 and
5120 x 17408."""


def choose_groups(rows: int, outputs: int, inputs: int) -> int:
    """How many products in a batch cuBLAS does the work fastest in, of those measured.

    Args:
        rows: of x.
        outputs: rows of the weight.
        inputs: its columns.
    """
    if inputs >= 2 * outputs and any(rows in some for some in _WIDE_ROWS):
        groups = 2
    elif rows in _TALL_ROWS and outputs in _TALL_OUTPUTS:
        groups = 4
    else:
        groups = 1
    # Each product starts at an address that cuBLAS reads in 16 bytes.
    return groups if outputs % (8 * groups) == 0 else 1


def _groups(x: Tensor, weight: Tensor) -> int:
    if x.element_size() != 2 or not weight.is_contiguous():
        return 1
    return choose_groups(x.numel() // x.shape[-1], *weight.shape)


def few_rows_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `naive.few_rows_linear`. Any number of rows is right; many go to cuBLAS."""
    if runs_kernel(x, weight):
        from ddtree_engine.ops.few_rows_linear import kernel

        if kernel.pays(x, weight):
            with torch.cuda.device(x.device):
                return kernel.few_rows_linear(x, weight)
        return vectorized.few_rows_linear(x, weight, groups=_groups(x, weight))
    return vectorized.few_rows_linear(x, weight)


def few_rows_linear_onto(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Add `few_rows_linear` to `out` [B, N, M], which is contiguous; the sum is rounded once."""
    if runs_kernel(out, x, weight):
        from ddtree_engine.ops.few_rows_linear import kernel

        if kernel.pays(x, weight):
            with torch.cuda.device(x.device):
                kernel.few_rows_linear(x, weight, out=out.view(-1, len(weight)), onto=True)
            return
        vectorized.few_rows_linear_onto(out, x, weight, groups=_groups(x, weight))
        return
    vectorized.few_rows_linear_onto(out, x, weight)


def few_rows_linear_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Write `few_rows_linear` of one request to `out` [1, N, M], columns of a wider tensor."""
    if runs_kernel(x, weight):
        from ddtree_engine.ops.few_rows_linear import kernel

        if kernel.pays(x, weight):
            with torch.cuda.device(x.device):
                kernel.few_rows_linear(x, weight, out=out[0])
            return
    vectorized.few_rows_linear_into(out, x, weight)


def plan_beside(x: Tensor, weight: Tensor) -> Callable[[Tensor], None] | None:
    """Plan to do a product beside a recurrence that is launched after it.

    Args:
        x: [B, N, K]
        weight: [M, K]

    Returns:
        What writes the product to [1, N, M], columns of a wider tensor; None where none pays.
    """
    if x.shape[0] != 1 or not runs_kernel(x, weight):
        return None
    from ddtree_engine.ops.few_rows_linear import kernel

    tiling = kernel.plan_beside(x) if kernel.takes(x, weight) else None
    if tiling is None:
        return None

    def run(out: Tensor) -> None:
        with torch.cuda.device(x.device):
            kernel.few_rows_linear(x, weight, out=out[0], tiling=tiling)

    return run
