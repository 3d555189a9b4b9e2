"""`few_rows_linear` with PyTorch, on a GPU by cuBLAS."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def few_rows_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `naive.few_rows_linear`."""
    return F.linear(x, weight)
