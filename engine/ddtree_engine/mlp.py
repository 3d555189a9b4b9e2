"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from torch import Tensor, nn

from ddtree_engine.fused_linear import fuse, project
from ddtree_engine.norm import RMSNorm
from ddtree_engine.ops.few_rows_linear import few_rows_linear_onto
from ddtree_engine.ops.silu_mul import silu_mul


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self._gate_up: Tensor | None = None

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        """The layers that take `x`."""
        return self.gate_proj, self.up_proj

    def fuse(self) -> None:
        """Make one product of the two that take `x`; see `fused_linear.fuse`."""
        self._gate_up = fuse(*self.projections)

    def products(self) -> list[Tensor]:
        """The weights that a pass multiplies with, in order."""
        first = [one.weight for one in self.projections]
        return [*(first if self._gate_up is None else [self._gate_up]), self.down_proj.weight]

    def add_to(self, stream: Tensor, norm: RMSNorm) -> None:
        """Add the output for the normed `stream` [B, N, H] to it, in place."""
        with norm.beside(stream) as (x, row_scale):
            hidden = project(x, self._gate_up, *self.projections)
        hidden = silu_mul(hidden, row_scale=row_scale)
        few_rows_linear_onto(stream, hidden, self.down_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, H] to [B, N, H]."""
        hidden = silu_mul(project(x, self._gate_up, *self.projections))
        result: Tensor = self.down_proj(hidden)
        return result
