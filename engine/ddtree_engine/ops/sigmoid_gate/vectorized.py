"""`sigmoid_gate` with PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """See `naive.sigmoid_gate`."""
    return x * torch.sigmoid(gate)
