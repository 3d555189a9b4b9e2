"""`split_linear` with PyTorch, on a GPU by cuBLAS: the parts are a batch of products.

cuBLAS would split a product with so few outputs itself, and add the parts in a kernel of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def split_linear(x: Tensor, weight: Tensor, *, parts: int) -> Tensor:
    """See `naive.split_linear`. Several parts take contiguous tensors in half precision."""
    if parts == 1:
        return F.linear(x, weight)[None]
    outputs, inputs = weight.shape
    left = x.view(-1, parts, inputs // parts).transpose(0, 1)
    right = weight.view(outputs, parts, inputs // parts).permute(1, 2, 0)
    if x.is_cuda:
        out = torch.bmm(left, right, out_dtype=torch.float32)
    else:  # has no products of mixed dtypes
        out = torch.bmm(left.float(), right.float())
    return out.view(parts, *x.shape[:-1], outputs)
