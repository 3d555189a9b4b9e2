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
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs)
    out = x.new_empty(len(rows), groups, outputs // groups)
    torch.bmm(
        rows.expand(groups, -1, -1),
        weight.view(groups, outputs // groups, inputs).transpose(1, 2),
        out=out.transpose(0, 1),
    )
    return out.view(*x.shape[:-1], outputs)


def few_rows_linear_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Write the product of `x` [1, N, K] to `out` [1, N, M], columns of a wider tensor."""
    torch.mm(x[0], weight.T, out=out[0])
