"""Angles of the rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor


class RotaryEmbedding:
    """Cosines and sines at given positions.

    Qwen3.5's interleaved multi-axis rotation gives all axes the same position for text, where it
    equals this plain one.
    """

    def __init__(self, rotary_dim: int, theta: float) -> None:
        # The device is said, since a model may be built under `torch.device("meta")`.
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device="cpu") / rotary_dim
        self._frequencies = 1.0 / (theta**exponents)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, float32 [B, N, 1, rotary_dim], for `positions` [B, N]."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        angles = positions[..., None].float() * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)[:, :, None, :]
        return angles.cos(), angles.sin()
