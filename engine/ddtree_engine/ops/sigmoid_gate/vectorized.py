"""`sigmoid_gate` with PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid_gate(x: Tensor, gate: Tensor, *, row_scale: Tensor | None = None) -> Tensor:
    """See `naive.sigmoid_gate`."""
    if row_scale is not None:
        gate = gate * row_scale[:, :, None, None]
    return (x * torch.sigmoid(gate)).to(x.dtype)
