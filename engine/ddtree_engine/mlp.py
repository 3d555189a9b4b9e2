"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from torch import Tensor, nn

from ddtree_engine.fused_linear import fuse, project
from ddtree_engine.ops.silu_mul import silu_mul
from ddtree_engine.ops.split_linear import split_linear


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self._gate_up: Tensor | None = None

    def fuse(self) -> None:
        """Make one product of the two that take `x`; see `fused_linear.fuse`."""
        self._gate_up = fuse(self.gate_proj, self.up_proj)

    def products(self) -> list[Tensor]:
        """The weights that a pass multiplies with, in order."""
        first = [self.gate_proj.weight, self.up_proj.weight]
        return [*(first if self._gate_up is None else [self._gate_up]), self.down_proj.weight]

    def parts(self, x: Tensor) -> Tensor:
        """[B, N, H] to [S, B, N, H], parts of the output's sum as `RMSNorm.add` takes them."""
        hidden = silu_mul(project(x, self._gate_up, self.gate_proj, self.up_proj))
        return split_linear(hidden, self.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, H] to [B, N, H]."""
        parts = self.parts(x)
        return parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)
