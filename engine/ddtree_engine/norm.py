"""Root mean square norm, plain and zero-centred, and the l2 norm of the delta rule's heads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddtree_engine.ops.inverse_rms import inverse_rms_into
from ddtree_engine.ops.rms_norm import rms_norm
from ddtree_engine.side_stream import beside

# As in the published gated delta net code: added to the sum of squares, inside the root.
L2_EPS = 1e-6


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`, or `* (1 + weight)` where `zero_centered`; computed in float32."""

    def __init__(self, size: int, eps: float, *, zero_centered: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if zero_centered else torch.ones(size))
        self.eps = eps
        self.zero_centered = zero_centered
        self._folded = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of `x`; the result has its dtype."""
        weight = self.weight.float()
        if self.zero_centered:
            weight = 1.0 + weight
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)

    def normed(self, x: Tensor) -> Tensor:
        """Like a call, of rows [B, N, H], by a kernel where one runs and no gradient is wanted."""
        return rms_norm(x, self.weight, self.eps, zero_centered=self.zero_centered)

    @torch.no_grad()
    def fold(self, *linears: nn.Linear) -> None:
        """Move the weight into those of the layers that take what this norm gives, and no other.

        `linear(norm(x))` stays the same. With no weight left, the norm is a factor for each row, by
        which the products can be multiplied as well: see `beside`.
        """
        weight = self.weight.float()
        if self.zero_centered:
            weight = 1.0 + weight
        for linear in linears:
            linear.weight.mul_(weight)
        self.weight.fill_(0.0 if self.zero_centered else 1.0)
        self._folded = True

    @contextmanager
    def beside(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Normalise `x` [B, N, H] while the body multiplies it, if the norm is folded; else before.

        Yields:
            What the products take, and what multiplies each row of theirs afterwards: `x` itself
            and [B, N], there after the body, or the normed rows and None.
        """
        if not self._folded:
            yield self.normed(x), None
            return
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        factors = x.new_empty(x.shape[:-1], dtype=wide)
        with beside(lambda: inverse_rms_into(factors, x, self.eps), x.device):
            yield x, factors


def l2_normalize(x: Tensor) -> Tensor:
    """Scale the last dimension of `x` to unit length, in float32 or wider."""
    x = x if x.dtype == torch.float64 else x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
