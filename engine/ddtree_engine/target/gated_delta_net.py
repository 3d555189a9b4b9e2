"""The recurrent layer of the target: gated delta net (arXiv 2412.06464) as in Qwen3.5."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddtree_engine.cache import Stash
from ddtree_engine.config import LinearAttentionConfig
from ddtree_engine.fused_linear import fuse, project, project_beside
from ddtree_engine.norm import L2_EPS, RMSNorm, l2_normalize
from ddtree_engine.ops.chunk_gdn import chunk_gdn
from ddtree_engine.ops.few_rows_linear import few_rows_linear_onto
from ddtree_engine.ops.gated_norm import gated_norm
from ddtree_engine.ops.gdn_inputs import GdnInputs, gdn_inputs
from ddtree_engine.ops.tree_gdn import tree_gdn


class GatedDeltaNet(nn.Module):
    """One recurrent layer; parameter names and order of channels are the checkpoint's."""

    def __init__(self, hidden_size: int, linear: LinearAttentionConfig, eps: float) -> None:
        super().__init__()
        self.linear = linear
        heads = linear.num_value_heads
        self.in_proj_qkv = nn.Linear(hidden_size, linear.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(hidden_size, linear.value_dim, bias=False)
        self.in_proj_b = nn.Linear(hidden_size, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden_size, heads, bias=False)
        # Only its weight [C, 1, K] is used; the module gives it the checkpoint's name.
        self.conv1d = nn.Conv1d(
            linear.conv_dim, linear.conv_dim, linear.conv_kernel, groups=linear.conv_dim, bias=False
        )
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(linear.value_head_dim, eps, zero_centered=False)
        self.out_proj = nn.Linear(linear.value_dim, hidden_size, bias=False)
        self._qkvbaz: Tensor | None = None

    def fuse(self) -> None:
        """Make one product of the four that take `x`; see `fused_linear.fuse`."""
        self._qkvbaz = fuse(*self.projections)

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        """The layers that take `x`."""
        # z last: nothing needs it before the recurrence is done.
        return self.in_proj_qkv, self.in_proj_b, self.in_proj_a, self.in_proj_z

    def products(self) -> list[Tensor]:
        """The weights that a pass multiplies with, in order."""
        first = [one.weight for one in self.projections]
        return [*(first if self._qkvbaz is None else [self._qkvbaz]), self.out_proj.weight]

    def split_heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both l2-normalised, queries scaled) and values of `mixed` [B, N, C]."""
        B, N, _ = mixed.shape
        linear = self.linear
        q, k, v = torch.split(mixed, [linear.key_dim, linear.key_dim, linear.value_dim], dim=-1)
        q = l2_normalize(q.view(B, N, -1, linear.key_head_dim)) * linear.key_head_dim**-0.5
        k = l2_normalize(k.view(B, N, -1, linear.key_head_dim))
        return q, k, v.view(B, N, -1, linear.value_head_dim).to(k.dtype)

    def gates(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Log decays and write strengths [B, N, HV] of `x` [B, N, H]."""
        a = self.in_proj_a(x).to(dtype)
        g = -self.A_log.to(dtype).exp() * F.softplus(a + self.dt_bias.to(dtype))
        return g, torch.sigmoid(self.in_proj_b(x)).to(dtype)

    def finish(self, out: Tensor, x: Tensor) -> Tensor:
        """Norm, gate by `x` [B, N, H] and project the outputs [B, N, HV, dv] to [B, N, H]."""
        z = self.in_proj_z(x).view(out.shape)
        gated = self.norm(out) * F.silu(z.to(out.dtype))
        result: Tensor = self.out_proj(gated.to(x.dtype).flatten(2))
        return result

    def verify(
        self,
        stream: Tensor,
        norm: RMSNorm,
        tail: Tensor,
        state: Tensor,
        ancestors: Tensor,
        bits: Tensor | None,
        taps: Tensor,
        stash: Stash,
        kept: Tensor,
    ) -> None:
        """Continue the committed sequence along every branch, and add the output in place.

        Args:
            stream: [B, N, H], the nodes' residual stream.
            norm: of what the projections take.
            tail: [B, K-1, C], last inputs of the convolution; only read.
            state: [B, HV, dk, dv] float32; only read.
            ancestors: [B, N, N] bool.
            bits: their `ancestor_bits`.
            taps: [B, N, K] as in `tree_conv`.
            stash: gets the nodes' decays and strengths.
            kept: [B, N, C] that gets their inputs of the convolution, for the commit.
        """
        with norm.beside(stream) as (x, row_scale):
            projected, while_z_comes = project_beside(x, self._qkvbaz, *self.projections)
        with while_z_comes:
            q, k, v, g, beta = self._recurrence_inputs(projected, tail, taps, kept, row_scale)
            stash.log_decays.append(g)
            stash.strengths.append(beta)
            out = tree_gdn(q, k, v, g, beta, state, ancestors, bits)
        self._add_gated(stream, out, projected, row_scale)

    def prefill(
        self,
        stream: Tensor,
        norm: RMSNorm,
        tail: Tensor,
        state: Tensor,
        taps: Tensor,
        kept: Tensor,
    ) -> Tensor:
        """Continue the committed sequence with a piece of a prompt, and add the output in place.

        Args:
            stream: [1, N, H], the tokens' residual stream.
            norm: of what the projections take.
            tail: [1, K-1, C], last inputs of the convolution; only read.
            state: [1, HV, dk, dv] float32; only read.
            taps: [1, N, K] of a chain, as in `tree_conv`.
            kept: [1, N, C] that gets the tokens' inputs of the convolution.

        Returns:
            The state after them.
        """
        with norm.beside(stream) as (x, row_scale):
            projected = project(x, self._qkvbaz, *self.projections)
        q, k, v, g, beta = self._recurrence_inputs(projected, tail, taps, kept, row_scale)
        out, after = chunk_gdn(q, k, v, g, beta, state)
        self._add_gated(stream, out.to(v.dtype), projected, row_scale)
        return after

    def _recurrence_inputs(
        self, projected: Tensor, tail: Tensor, taps: Tensor, kept: Tensor, row_scale: Tensor | None
    ) -> GdnInputs:
        """What the recurrence takes, of the outputs of `projections` [B, N, *] side by side."""
        linear = self.linear
        sizes = [one.out_features for one in self.projections]
        inputs, b, a, _ = torch.split(projected, sizes, dim=-1)
        return gdn_inputs(
            inputs,
            tail,
            taps,
            self.conv1d.weight[:, 0],
            a,
            b,
            self.A_log,
            self.dt_bias,
            key_heads=linear.num_key_heads,
            key_dim=linear.key_head_dim,
            eps=L2_EPS,
            kept=kept,
            row_scale=row_scale,
        )

    def _add_gated(
        self, stream: Tensor, out: Tensor, projected: Tensor, row_scale: Tensor | None
    ) -> None:
        """Norm the recurrence's outputs [B, N, HV, dv], gate them, and add their product."""
        z = projected[..., -self.in_proj_z.out_features :]
        gated = gated_norm(
            out,
            torch.unflatten(z, -1, out.shape[2:]),
            self.norm.weight,
            self.norm.eps,
            row_scale=row_scale,
        )
        few_rows_linear_onto(stream, gated.flatten(2), self.out_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs over whole sequences `x` [B, T, H], from an empty state."""
        T, K = x.shape[1], self.linear.conv_kernel
        inputs = self.in_proj_qkv(x).transpose(1, 2)
        mixed = F.conv1d(
            F.pad(inputs, (K - 1, 0)), self.conv1d.weight, groups=self.linear.conv_dim
        )[..., :T]
        q, k, v = self.split_heads(F.silu(mixed).transpose(1, 2))
        g, beta = self.gates(x, k.dtype)
        out, _ = chunk_gdn(q, k, v, g, beta, None)
        return self.finish(out, x)
