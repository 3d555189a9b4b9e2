"""The shapes of a target and its drafter, and whether the two fit.

One dataclass describes hybrid and dense targets, so that the model code has no family in it.
Drafters are DFlash (arXiv 2602.06036). `config_file.py` reads both from checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddtree_engine.errors import CheckpointError

LayerType = Literal["linear_attention", "full_attention"]
DrafterLayerType = Literal["sliding_attention", "full_attention"]


@dataclass(frozen=True, slots=True)
class LinearAttentionConfig:
    """Shape of the gated delta net layers."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def key_dim(self) -> int:
        """Channels of all query heads together (keys have as many)."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        """Channels of all value heads together."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels that go through the causal convolution: queries, keys, values."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A target model, hybrid or dense.

    `attention_gate`: the query projection carries a sigmoid gate beside each query head.
    `zero_centered_norm`: norms multiply by `1 + weight` (Qwen3.5) and not by `weight` (Qwen3).
    `rotary_dim`: how many leading dimensions of a head RoPE turns.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer_types: tuple[LayerType, ...]
    linear: LinearAttentionConfig | None
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    attention_gate: bool
    zero_centered_norm: bool
    tie_word_embeddings: bool
    max_position_embeddings: int

    @property
    def num_layers(self) -> int:
        """Decoder layers of both kinds."""
        return len(self.layer_types)

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the full-attention layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "full_attention")

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the gated delta net layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "linear_attention")


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A DFlash drafter.

    `causal_sliding`: whether sliding layers are causal inside the block. That is the rule unless
    the checkpoint says `is_causal: false`; full layers see their whole block always.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer_types: tuple[DrafterLayerType, ...]
    sliding_window: int | None
    causal_sliding: bool
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    max_position_embeddings: int

    @property
    def num_layers(self) -> int:
        """Decoder layers of the drafter."""
        return len(self.layer_types)


def check_fit(drafter: DrafterConfig, target: TargetConfig) -> None:
    """Refuse a drafter that was not made for `target`: it would draft noise, or index past a table.

    Raises:
        CheckpointError: naming every value that differs.
    """
    problems = []
    if drafter.vocab_size != target.vocab_size:
        problems.append(f"vocab_size {drafter.vocab_size} against {target.vocab_size}")
    if drafter.hidden_size != target.hidden_size:
        problems.append(f"hidden_size {drafter.hidden_size} against {target.hidden_size}")
    if drafter.num_target_layers != target.num_layers:
        problems.append(
            f"num_target_layers {drafter.num_target_layers} against {target.num_layers} layers"
        )
    bad = [i for i in drafter.target_layer_ids if not 0 <= i < target.num_layers]
    if bad:
        problems.append(f"target_layer_ids {bad} outside 0..{target.num_layers - 1}")
    if drafter.mask_token_id >= target.vocab_size:
        problems.append(
            f"mask_token_id {drafter.mask_token_id} outside the vocabulary of {target.vocab_size}"
        )
    if problems:
        raise CheckpointError(
            f"the drafter does not fit its target: {'; '.join(problems)}",
            hint="use the drafter that was trained for this model",
        )
