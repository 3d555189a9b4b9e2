"""Root mean square norm, plain and zero-centred, and the l2 norm of the delta rule's heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddtree_engine.ops.add_norm import add_norm

# As in the published gated delta net code: added to the sum of squares, inside the root.
L2_EPS = 1e-6


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`, or `* (1 + weight)` where `zero_centered`; computed in float32."""

    def __init__(self, size: int, eps: float, *, zero_centered: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if zero_centered else torch.ones(size))
        self.eps = eps
        self.zero_centered = zero_centered

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of `x`; the result has its dtype."""
        weight = self.weight.float()
        if self.zero_centered:
            weight = 1.0 + weight
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the normalised `x + residual` [B, N, H], and the sum itself.

        `x` is [B, N, H], or [S, B, N, H] in parts of a sum.
        """
        return add_norm(x, residual, self.weight, self.eps, zero_centered=self.zero_centered)


def l2_normalize(x: Tensor) -> Tensor:
    """Scale the last dimension of `x` to unit length, in float32 or wider."""
    x = x if x.dtype == torch.float64 else x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
