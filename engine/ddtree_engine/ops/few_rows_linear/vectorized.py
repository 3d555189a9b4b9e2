"""`few_rows_linear` with PyTorch, on a GPU by cuBLAS."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def few_rows_linear(x: Tensor, weight: Tensor, *, groups: int = 1) -> Tensor:
    """See `naive.few_rows_linear`.

    Args:
        x: as there.
        weight: as there.
        groups: of outputs, a product each in one batch; for such cuBLAS has other kernels.
    """
    if groups == 1:
        return F.linear(x, weight)
    out = x.new_empty(*x.shape[:-1], len(weight))
    torch.bmm(*_grouped(x, weight, groups), out=_groups_of(out, groups))
    return out


def few_rows_linear_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Write the product of `x` [1, N, K] to `out` [1, N, M], columns of a wider tensor."""
    torch.mm(x[0], weight.T, out=out[0])


def few_rows_linear_onto(out: Tensor, x: Tensor, weight: Tensor, *, groups: int = 1) -> None:
    """Add the product of `x` [B, N, K] to `out` [B, N, M], which is contiguous."""
    if groups == 1:
        out.view(-1, len(weight)).addmm_(x.reshape(-1, x.shape[-1]), weight.T)
    else:
        _groups_of(out, groups).baddbmm_(*_grouped(x, weight, groups))


def _grouped(x: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).expand(groups, -1, -1)
    return rows, weight.view(groups, outputs // groups, inputs).transpose(1, 2)


def _groups_of(out: Tensor, groups: int) -> Tensor:
    return out.view(-1, groups, out.shape[-1] // groups).transpose(0, 1)
