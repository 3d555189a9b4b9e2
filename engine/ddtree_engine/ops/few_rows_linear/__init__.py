"""A matrix product of few rows with a large weight, which is all about reading the weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.few_rows_linear import vectorized

__all__ = ["few_rows_linear", "few_rows_linear_into", "plan_beside"]

GROUPS = 4
GROUPED_ROWS = range(97, 161)
GROUPED_OUTPUTS = range(32768, 65537)
"""Where a batch of four products was measured to be faster than one: 96 instead of 104 µs for 129
rows and a weight of 34816 x 5120 on an H200."""


def few_rows_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `naive.few_rows_linear`. Any number of rows is right; many go to cuBLAS."""
    if runs_kernel(x, weight):
        from ddtree_engine.ops.few_rows_linear import kernel

        if kernel.pays(x, weight):
            with torch.cuda.device(x.device):
                return kernel.few_rows_linear(x, weight)
        rows = x.numel() // x.shape[-1]
        grouped = rows in GROUPED_ROWS and len(weight) in GROUPED_OUTPUTS
        if grouped and len(weight) % GROUPS == 0 and weight.is_contiguous():
            return vectorized.few_rows_linear(x, weight, groups=GROUPS)
    return vectorized.few_rows_linear(x, weight)


def few_rows_linear_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Write `few_rows_linear` of one request to `out` [1, N, M], columns of a wider tensor."""
    if runs_kernel(x, weight):
        from ddtree_engine.ops.few_rows_linear import kernel

        if kernel.pays(x, weight):
            with torch.cuda.device(x.device):
                kernel.few_rows_linear(x, weight, out=out[0])
            return
    vectorized.few_rows_linear_into(out, x, weight)


def plan_beside(
    x: Tensor, weight: Tensor, last: int, busy: int
) -> tuple[int, Callable[[Tensor], None]] | None:
    """Plan to do some of the last outputs beside a recurrence that is launched after the others.

    Args:
        x: [B, N, K]
        weight: [M, K]
        last: how many outputs may be done so.
        busy: programs of the recurrence, `tree_gdn`.

    Returns:
        How many of the outputs it pays for, and what writes them to [1, N, that many], columns of a
        wider tensor; None where it pays for none.
    """
    if x.shape[0] != 1 or not runs_kernel(x, weight):
        return None
    from ddtree_engine.ops.few_rows_linear import kernel

    plan = kernel.plan_beside(x, last, busy) if kernel.takes(x, weight) else None
    if plan is None:
        return None
    outputs, tiling = plan

    def run(out: Tensor) -> None:
        with torch.cuda.device(x.device):
            kernel.few_rows_linear(x, weight[-outputs:], out=out[0], tiling=tiling)

    return outputs, run
