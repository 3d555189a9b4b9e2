"""The target model: one pass over tree nodes that reads the cache, one over whole sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddtree_engine.cache import Stash, TargetCache
from ddtree_engine.config import LayerType, TargetConfig
from ddtree_engine.fused_linear import give_back
from ddtree_engine.mlp import GatedMLP
from ddtree_engine.norm import RMSNorm
from ddtree_engine.ops.ancestor_bits import ancestor_bits
from ddtree_engine.ops.few_rows_linear import few_rows_linear
from ddtree_engine.rope import RotaryEmbedding
from ddtree_engine.target.attention import Attention
from ddtree_engine.target.gated_delta_net import GatedDeltaNet
from ddtree_engine.tree_batch import TreeBatch


@dataclass(frozen=True, slots=True)
class Verification:
    """What one pass over the trees of a round found.

    Attributes:
        hidden: [B, N, H] after the final norm, ready for `TargetModel.logits`.
        features: [B, N, F*H] residual streams after the asked layers, side by side; None if none.
        stash: what the accepted nodes will add to the cache.
    """

    hidden: Tensor
    features: Tensor | None
    stash: Stash


class DecoderLayer(nn.Module):
    """A mixer (attention or gated delta net) and an MLP, each behind a norm and a residual."""

    def __init__(self, config: TargetConfig, kind: LayerType) -> None:
        super().__init__()
        eps, zero_centered = config.rms_norm_eps, config.zero_centered_norm
        self.self_attn: Attention | None = None
        self.linear_attn: GatedDeltaNet | None = None
        if kind == "full_attention":
            self.self_attn = Attention(config)
        else:
            assert config.linear is not None, "config_file.py gives hybrids their linear part"
            self.linear_attn = GatedDeltaNet(config.hidden_size, config.linear, eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, eps, zero_centered=zero_centered)
        self.post_attention_layernorm = RMSNorm(
            config.hidden_size, eps, zero_centered=zero_centered
        )

    @property
    def mixer(self) -> Attention | GatedDeltaNet:
        """Whichever of the two it has."""
        mixer = self.linear_attn if self.self_attn is None else self.self_attn
        assert mixer is not None
        return mixer

    def fuse(self) -> None:
        """Make one product of the projections that share an input, and their norms' weights."""
        self.input_layernorm.fold(*self.mixer.projections)
        self.post_attention_layernorm.fold(*self.mlp.projections)
        self.mixer.fuse()
        self.mlp.fuse()

    def products(self) -> list[Tensor]:
        """The weights that a pass multiplies with, in order."""
        return [*self.mixer.products(), *self.mlp.products()]


def _embedding(rows: int, width: int) -> nn.Embedding:
    """`nn.Embedding` with its usual first values, which a model without storage does without.

    On the meta device PyTorch draws them by a decomposition, and imports its compiler for that.
    """
    weight = torch.empty(rows, width)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding(rows, width, _weight=weight)


class TargetModel(nn.Module):
    """A hybrid or dense causal language model with the checkpoint's own parameter names."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, kind) for kind in config.layer_types)
        self.norm = RMSNorm(
            config.hidden_size, config.rms_norm_eps, zero_centered=config.zero_centered_norm
        )
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rope = RotaryEmbedding(config.rotary_dim, config.rope_theta)
        self._filters: Tensor | None = None

    def fuse(self) -> None:
        """Make one product of the projections that share an input, in every layer."""
        for layer in self.decoder_layers():
            layer.fuse()
            give_back(self.embed_tokens.weight.device)
        recurrent = self._recurrent()
        if recurrent:
            self._filters = torch.stack([one.conv1d.weight.detach() for one in recurrent])
            for one, weight in zip(recurrent, self._filters, strict=True):
                one.conv1d.weight = nn.Parameter(weight, requires_grad=False)

    def _recurrent(self) -> list[GatedDeltaNet]:
        mixers = (layer.linear_attn for layer in self.decoder_layers())
        return [mixer for mixer in mixers if mixer is not None]

    @property
    def filters(self) -> Tensor | None:
        """Filters [LR, C, K] of the recurrent layers' convolutions; None without such layers."""
        weights = self._filters
        if weights is None and (recurrent := self._recurrent()):
            weights = torch.stack([one.conv1d.weight for one in recurrent])
        return None if weights is None else weights[:, :, 0]

    @property
    def conv_kernel(self) -> int:
        """Taps of the causal convolution; 1 where the model has none."""
        return self.config.linear.conv_kernel if self.config.linear else 1

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., H] of token ids [...]."""
        embedded: Tensor = self.embed_tokens(tokens)
        return embedded

    @property
    def head_weight(self) -> Tensor:
        """Weight [V, H] of the output head, which may be the embedding's."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of normed hidden states [..., H], in their dtype."""
        return few_rows_linear(hidden, self.head_weight)

    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers in order, with their type."""
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of normed hidden states [..., H]."""
        return self.head(hidden).float()

    def verify(
        self,
        batch: TreeBatch,
        cache: TargetCache,
        rows: slice,
        feature_layers: Sequence[int] = (),
        *,
        lengths: Tensor | None = None,
        context: int | None = None,
    ) -> Verification:
        """Run every node of every tree, each after its own ancestors; `cache` is only read.

        Args:
            batch: the B trees.
            cache: holds the committed tokens of
            rows: B consecutive cache rows, one a tree.
            feature_layers: layers whose residual stream the drafter wants.
            lengths: [B] int64, committed tokens of each row, where only the device knows them: no
                shape then depends on them. None takes what `cache` says.
            context: with `lengths`, how many cache rows to look at, at least as many.
        """
        T = cache.max_length if context is None else context
        if lengths is None:
            T = max(cache.lengths[rows])
            lengths = torch.tensor(cache.lengths[rows], device=batch.tokens.device)
        rope = self.rope(lengths[:, None] + batch.depths)
        stash = Stash()
        stream = self.embed(batch.tokens)
        bits: Tensor | None = None
        if self.config.linear is not None:
            bits = ancestor_bits(batch.recurrent_ancestors)
            shape = (len(self.config.linear_layers), *batch.tokens.shape)
            stash.conv_inputs = stream.new_empty(*shape, self.config.linear.conv_dim)
        features = stream.new_empty(*batch.tokens.shape, len(feature_layers), stream.shape[-1])
        recurrent = full = 0
        for index, layer in enumerate(self.decoder_layers()):
            norm = layer.input_layernorm
            if layer.self_attn is not None:
                prefix = (cache.keys[full, rows, :T], cache.values[full, rows, :T])
                layer.self_attn.verify(stream, norm, rope, prefix, lengths, batch.ancestors, stash)
                full += 1
            elif layer.linear_attn is not None:
                assert stash.conv_inputs is not None
                layer.linear_attn.verify(
                    stream,
                    norm,
                    cache.tails[recurrent, rows],
                    cache.states[recurrent, rows],
                    batch.recurrent_ancestors,
                    bits,
                    batch.taps,
                    stash,
                    stash.conv_inputs[recurrent],
                )
                recurrent += 1
            layer.mlp.add_to(stream, layer.post_attention_layernorm)
            for place, wanted in enumerate(feature_layers):
                if wanted == index:
                    features[:, :, place] = stream
        return Verification(
            hidden=self.norm.normed(stream),
            features=features.flatten(2) if feature_layers else None,
            stash=stash,
        )

    def forward_sequence(
        self, tokens: Tensor, feature_layers: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run whole sequences from an empty cache; differentiable.

        Args:
            tokens: [B, T] int64.
            feature_layers: layers whose residual stream is wanted.

        Returns:
            Normed hidden states [B, T, H], and features [B, T, F*H] or None.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        rope = self.rope(positions)
        features = dict[int, Tensor]()
        x = self.embed(tokens)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            normed = layer.input_layernorm(x)
            if layer.self_attn is not None:
                x = x + layer.self_attn(normed, rope)
            elif layer.linear_attn is not None:
                x = x + layer.linear_attn(normed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if index in feature_layers:
                features[index] = x
        return self.norm(x), _side_by_side(features, feature_layers)


def _side_by_side(streams: dict[int, Tensor], layers: Sequence[int]) -> Tensor | None:
    """In the order that the drafter names the layers in, which its `fc` was trained with."""
    return torch.cat([streams[layer] for layer in layers], dim=-1) if layers else None
