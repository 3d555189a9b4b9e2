"""The DFlash drafter: a small transformer over [anchor, MASK, ...] and the target's features.

Keys and values of the context come from hidden states of the target ("KV injection"): features of
some target layers side by side, projected by `fc`, normed, and run through each layer's own
`k_proj` and `v_proj`. Slot 0 of a block holds the anchor, a known token; slot s predicts the token
at the anchor's position + s. Embedding and output head are the target's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddtree_engine.config import DrafterConfig
from ddtree_engine.fused_linear import fuse, give_back, project
from ddtree_engine.mlp import GatedMLP
from ddtree_engine.norm import RMSNorm
from ddtree_engine.ops.drafter_attention import drafter_attention
from ddtree_engine.ops.few_rows_linear import few_rows_linear, few_rows_linear_onto
from ddtree_engine.ops.qk_norm_rope import qk_norm_rope
from ddtree_engine.rope import RotaryEmbedding

Rope = tuple[Tensor, Tensor]


class DrafterAttention(nn.Module):
    """Attention of the block to the context's keys and values and to itself."""

    def __init__(self, config: DrafterConfig, sliding: bool) -> None:
        super().__init__()
        H, d = config.hidden_size, config.head_dim
        self.head_dim = d
        self.causal = sliding and config.causal_sliding
        self.window = config.sliding_window if sliding else None
        self.q_proj = nn.Linear(H, config.num_heads * d, bias=False)
        self.k_proj = nn.Linear(H, config.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(H, config.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(config.num_heads * d, H, bias=False)
        self.q_norm = RMSNorm(d, config.rms_norm_eps, zero_centered=False)
        self.k_norm = RMSNorm(d, config.rms_norm_eps, zero_centered=False)
        self._qkv: Tensor | None = None

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        """The layers that take `x`."""
        return self.q_proj, self.k_proj, self.v_proj

    def fuse(self, qkv: Tensor) -> None:
        """Make one product of the three that take `x`, with `qkv`, their weights as of `fuse`."""
        self._qkv = qkv
        sizes = [one.out_features for one in self.projections]
        for one, rows in zip(self.projections, torch.split(qkv, sizes), strict=True):
            one.weight = nn.Parameter(rows, requires_grad=False)

    def products(self) -> list[Tensor]:
        """The weights that a draft multiplies with, in order."""
        first = [one.weight for one in self.projections]
        return [*(first if self._qkv is None else [self._qkv]), self.o_proj.weight]

    @property
    def context_weight(self) -> Tensor:
        """Weight [2 * HKV * d, H] that gives features their keys and values."""
        if self._qkv is None:
            return torch.cat([self.k_proj.weight, self.v_proj.weight])
        return self._qkv[self.q_proj.out_features :]

    def _heads(self, x: Tensor, rope: Rope, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split `x` [B, M, *] after so many channels of queries; norm and rotate."""
        rest = (x.shape[-1] - queries) // 2
        q, k, v = (
            torch.unflatten(part, -1, (part.shape[-1] // self.head_dim, self.head_dim))
            for part in torch.split(x, [queries, rest, rest], dim=-1)
        )
        norms = self.q_norm.weight, self.k_norm.weight
        q, k, v = qk_norm_rope(q, k, v, *norms, *rope, self.k_norm.eps, zero_centered=False)
        return q, k, v

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, [B, M, heads, d] each, of block rows."""
        projected = project(x, self._qkv, *self.projections)
        return self._heads(projected, rope, self.q_proj.out_features)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [B, M, HKV, d] of projected features."""
        _, k, v = self._heads(project(x, None, self.k_proj, self.v_proj), rope, queries=0)
        return k, v

    def add_to(
        self, stream: Tensor, norm: RMSNorm, rope: Rope, context: Rope, lengths: Tensor
    ) -> None:
        """Add the block's attention to `context` and to itself to its residual stream, in place.

        Args:
            stream: [B, M, H]
            norm: of what the projections take. Its weight stays: the context's keys and values have
                the same projections and another norm.
            rope: cosines and sines of the block's positions.
            context: keys and values [B, T, HKV, d].
            lengths: [B] int64, how many of them there are.
        """
        q, k, v = self.project(norm.normed(stream), rope)
        out = drafter_attention(
            q,
            *context,
            lengths,
            k,
            v,
            causal=self.causal,
            window=self.window,
            scale=self.head_dim**-0.5,
        )
        few_rows_linear_onto(stream, out.flatten(2), self.o_proj.weight)


class DrafterLayer(nn.Module):
    """Attention and MLP; `input_layernorm` is for block rows only, never for features."""

    def __init__(self, config: DrafterConfig, sliding: bool) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.self_attn = DrafterAttention(config, sliding)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, eps, zero_centered=False)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps, zero_centered=False)

    def products(self) -> list[Tensor]:
        """The weights that a draft multiplies with, in order."""
        return [*self.self_attn.products(), *self.mlp.products()]


class DrafterModel(nn.Module):
    """A DFlash drafter with the checkpoint's own parameter names."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        H, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.target_layer_ids) * H, H, bias=False)
        self.hidden_norm = RMSNorm(H, eps, zero_centered=False)
        self.layers = nn.ModuleList(
            DrafterLayer(config, kind == "sliding_attention") for kind in config.layer_types
        )
        self.norm = RMSNorm(H, eps, zero_centered=False)
        self.rope = RotaryEmbedding(config.head_dim, config.rope_theta)
        self._qkv: Tensor | None = None
        self._key_norms: Tensor | None = None

    def fuse(self) -> None:
        """Make one product of the projections that share an input, and of some norms' weights.

        All layers take their context from the same features, so that what gives them keys and
        values is one batch of products: their projections lie in one tensor.
        """
        layers = self.decoder_layers()
        self._qkv = torch.stack([fuse(*layer.self_attn.projections) for layer in layers])
        for layer, qkv in zip(layers, self._qkv, strict=True):
            layer.self_attn.fuse(qkv)
            layer.post_attention_layernorm.fold(*layer.mlp.projections)
            layer.mlp.fuse()
            give_back(self.fc.weight.device)
        self._key_norms = torch.stack([layer.self_attn.k_norm.weight.detach() for layer in layers])

    def block_tokens(self, anchors: Tensor) -> Tensor:
        """Token ids [B, block] of the block at each anchor [B]: the anchor, then masks."""
        block = anchors.new_full(
            (anchors.shape[0], self.config.block_size), self.config.mask_token_id
        )
        block[:, 0] = anchors
        return block

    def context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [L, B, T, HKV, d] that committed tokens give to every layer.

        Args:
            features: [B, T, F*H] of the target.
            positions: [B, T] int64, absolute.
        """
        x = self.hidden_norm.normed(few_rows_linear(features, self.fc.weight))
        rope = self.rope(positions)
        if self._qkv is None or self._key_norms is None:
            pairs = [layer.self_attn.keys_values(x, rope) for layer in self.decoder_layers()]
            return torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs])
        return self._context_of_all_layers(self._qkv, self._key_norms, x, rope)

    def _context_of_all_layers(
        self, qkv: Tensor, key_norms: Tensor, x: Tensor, rope: Rope
    ) -> tuple[Tensor, Tensor]:
        """Keys and values as of `context`, the layers being groups of heads of one another."""
        L, d = key_norms.shape
        B, T, H = x.shape
        first = self.decoder_layers()[0].self_attn
        projected = []
        for weights in qkv[:, first.q_proj.out_features :].chunk(2, dim=1):
            out = x.new_empty(B * T, L, weights.shape[1])
            rows = x.reshape(-1, H).expand(L, -1, -1)
            torch.bmm(rows, weights.transpose(1, 2), out=out.transpose(0, 1))
            projected.append(out.view(B, T, -1, d))
        k, v = projected
        _, k, v = qk_norm_rope(
            k[:, :, :0],  # no queries
            *(k, v, first.q_norm.weight, key_norms, *rope, first.k_norm.eps),
            zero_centered=False,
        )
        k, v = (one.view(B, T, L, -1, d).permute(2, 0, 1, 3, 4) for one in (k, v))
        return k, v

    def draft(self, block: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Fill the blocks that follow `lengths` committed tokens.

        Args:
            block: [B, block, H] embeddings of `block_tokens`.
            keys: [L, B, T, HKV, d] of `context`; rows from `lengths[b]` on are ignored.
            values: [L, B, T, HKV, d]
            lengths: [B] int64.

        Returns:
            [B, block-1, H] normed; row s-1, through the target's head, predicts the token s
            positions after the anchor.
        """
        offsets = torch.arange(block.shape[1], device=block.device)
        rope = self.rope(lengths[:, None] + offsets)
        stream = block.clone()
        for index, layer in enumerate(self.decoder_layers()):
            context = keys[index], values[index]
            layer.self_attn.add_to(stream, layer.input_layernorm, rope, context, lengths)
            layer.mlp.add_to(stream, layer.post_attention_layernorm)
        return self.norm.normed(stream)[:, 1:]

    def decoder_layers(self) -> list[DrafterLayer]:
        """The layers in order, with their type."""
        return [layer for layer in self.layers if isinstance(layer, DrafterLayer)]
