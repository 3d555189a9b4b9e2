"""Full attention of the target: grouped queries, per-head norms, partial RoPE, an optional gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddtree_engine.cache import Stash
from ddtree_engine.config import TargetConfig
from ddtree_engine.fused_linear import fuse, project
from ddtree_engine.norm import RMSNorm
from ddtree_engine.ops.few_rows_linear import few_rows_linear_onto
from ddtree_engine.ops.qk_norm_rope import qk_norm_rope
from ddtree_engine.ops.sigmoid_gate import sigmoid_gate
from ddtree_engine.ops.tree_attention import tree_attention


def causal_mask(stream: Tensor, keys: int) -> Tensor | None:
    """Mask [N, keys] for the tokens of `stream` [1, N, H], which are the last of the keys.

    None stands for the mask of as many keys as tokens. FlashAttention, which takes half precision
    on a GPU, needs no mask in memory.
    """
    queries = stream.shape[1]
    if queries == keys:
        return None
    if stream.is_cuda and stream.element_size() == 2:
        from torch.nn.attention.bias import causal_lower_right  # imports PyTorch's compiler

        return causal_lower_right(queries, keys)
    return torch.ones(queries, keys, dtype=torch.bool, device=stream.device).tril(keys - queries)


class Attention(nn.Module):
    """One full-attention layer.

    With the gate, a head's rows in `q_proj` are its query, then its gate; the output of the head is
    multiplied by the gate's sigmoid (Qwen3.5).
    """

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        H, d = config.hidden_size, config.head_dim
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = d
        self.gated = config.attention_gate
        self.q_proj = nn.Linear(H, config.num_heads * d * (2 if self.gated else 1), bias=False)
        self.k_proj = nn.Linear(H, config.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(H, config.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(config.num_heads * d, H, bias=False)
        zero_centered = config.zero_centered_norm
        self.q_norm = RMSNorm(d, config.rms_norm_eps, zero_centered=zero_centered)
        self.k_norm = RMSNorm(d, config.rms_norm_eps, zero_centered=zero_centered)
        self._qkv: Tensor | None = None

    def fuse(self) -> None:
        """Make one product of the three that take `x`; see `fused_linear.fuse`."""
        self._qkv = fuse(*self.projections)

    def products(self) -> list[Tensor]:
        """The weights that a pass multiplies with, in order."""
        first = [one.weight for one in self.projections]
        return [*(first if self._qkv is None else [self._qkv]), self.o_proj.weight]

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        """The layers that take `x`."""
        return self.q_proj, self.k_proj, self.v_proj

    def split(
        self, projected: Tensor, rope: tuple[Tensor, Tensor], row_scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Take the outputs of `projections` [B, N, *] apart.

        Args:
            projected: side by side, each row to be multiplied by
            row_scale: [B, N]; None is 1.
            rope: cosines and sines of the positions.

        Returns:
            Rotated queries and keys, values, and the gate, which is as it was: [B, N, heads, d].
        """
        parts = torch.split(projected, [one.out_features for one in self.projections], dim=-1)
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        query, key, value = (
            torch.unflatten(part, -1, (count, -1)) for part, count in zip(parts, heads, strict=True)
        )
        gate = None
        if self.gated:
            query, gate = query.chunk(2, dim=-1)
        q, k, v = qk_norm_rope(
            query,
            key,
            value,
            self.q_norm.weight,
            self.k_norm.weight,
            *rope,
            self.q_norm.eps,
            zero_centered=self.q_norm.zero_centered,
            row_scale=row_scale,
        )
        return q, k, v, gate

    def project(
        self, x: Tensor, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys, values and gate as of `split`, of normed rows `x` [B, N, H]."""
        return self.split(project(x, self._qkv, *self.projections), rope)

    def finish(self, out: Tensor, gate: Tensor | None) -> Tensor:
        """Gate and project the heads' outputs [B, N, HQ, d] to [B, N, H]."""
        if gate is not None:
            out = sigmoid_gate(out, gate)
        result: Tensor = self.o_proj(out.flatten(2))
        return result

    def verify(
        self,
        stream: Tensor,
        norm: RMSNorm,
        rope: tuple[Tensor, Tensor],
        prefix: tuple[Tensor, Tensor],
        lengths: Tensor,
        ancestors: Tensor,
        stash: Stash,
    ) -> None:
        """Let tree nodes attend to the prefix and their ancestors, and add the output in place.

        Args:
            stream: [B, N, H], the nodes' residual stream.
            norm: of what the projections take.
            rope: cosines and sines of the nodes' positions.
            prefix: keys and values [B, T, HKV, d] of committed tokens.
            lengths: [B] int64, how many there are.
            ancestors: [B, N, N] bool.
            stash: gets keys and values of the nodes.
        """
        with norm.beside(stream) as (x, row_scale):
            projected = project(x, self._qkv, *self.projections)
        q, k, v, gate = self.split(projected, rope, row_scale)
        stash.attention_keys.append(k)
        stash.attention_values.append(v)
        scale = self.head_dim**-0.5
        out = tree_attention(q, *prefix, lengths, k, v, ancestors, scale, gate, row_scale=row_scale)
        few_rows_linear_onto(stream, out.flatten(2), self.o_proj.weight)

    def prefill(
        self,
        stream: Tensor,
        norm: RMSNorm,
        rope: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
    ) -> None:
        """Let a piece of a prompt attend to what is before it, and add the output in place.

        Args:
            stream: [1, N, H], the tokens' residual stream.
            norm: of what the projections take.
            rope: cosines and sines of the tokens' positions.
            keys: [T, HKV, d] of the row, the last N of which are theirs and are written.
            values: [T, HKV, d], likewise.
            mask: as of `causal_mask`.
        """
        with norm.beside(stream) as (x, row_scale):
            projected = project(x, self._qkv, *self.projections)
        q, k, v, gate = self.split(projected, rope, row_scale)
        start = keys.shape[0] - q.shape[1]
        keys[start:] = k[0]
        values[start:] = v[0]
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys[None].transpose(1, 2),
            values[None].transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.head_dim**-0.5,
            enable_gqa=True,
        ).transpose(1, 2)
        if gate is not None:
            out = sigmoid_gate(out, gate, row_scale=row_scale)
        few_rows_linear_onto(stream, out.flatten(2), self.o_proj.weight)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Causal attention over whole sequences `x` [B, T, H]."""
        q, k, v, gate = self.project(x, rope)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            scale=self.head_dim**-0.5,
            enable_gqa=True,
        )
        return self.finish(out.transpose(1, 2), gate)
