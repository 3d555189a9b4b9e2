"""Reads the `config.json` of a checkpoint.

Two families of target are read: the Qwen3.5 hybrid (gated delta net with an attention layer every
few layers; Qwen3.5, 3.6 and 3.8 share it) and the dense Qwen3.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ddtree_engine.config import (
    DrafterConfig,
    DrafterLayerType,
    LayerType,
    LinearAttentionConfig,
    TargetConfig,
)
from ddtree_engine.config_fields import RawDense, RawDrafter, RawHybrid, RawModel, rotated_pairs
from ddtree_engine.errors import CheckpointError
from ddtree_engine.json_file import read_json_object

HYBRID_ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
DENSE_ARCHITECTURES = ("Qwen3ForCausalLM",)
DRAFTER_ARCHITECTURES = ("DFlashDraftModel",)

_T = TypeVar("_T", bound=BaseModel)
_V = TypeVar("_V")


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    """Return config.json of a model folder and its one architecture."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(
            f"model folder `{folder}` {'is not a folder' if folder.exists() else 'does not exist'}",
            hint="pass a Hugging Face model folder, or `bundled` for the demo model",
        )
    if not path.is_file():
        raise CheckpointError(
            f"`{folder}` has no config.json", hint="is this a Hugging Face model folder?"
        )
    data = read_json_object(path)
    architectures = data.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise CheckpointError(f"`{path}` must name one architecture, found: {architectures!r}")
    return data, str(architectures[0])


def _parse(model: type[_T], data: dict[str, Any], path: Path) -> _T:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'config'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise CheckpointError(f"`{path}` is not usable: {problems}") from None


def read_target_config(folder: Path) -> TargetConfig:
    """Read the target's `config.json` in `folder`.

    Raises:
        CheckpointError: no such folder or file, an unknown architecture, a missing or unusable
            value.
    """
    data, architecture = _read(folder)
    path = folder / "config.json"
    if architecture in HYBRID_ARCHITECTURES:
        # The multimodal class nests its language model; the text-only class is flat.
        text = data.get("text_config", data)
        raw = _parse(RawHybrid, text, path)
        layer_types: list[LayerType] = raw.layer_types or [
            "full_attention" if (i + 1) % raw.full_attention_interval == 0 else "linear_attention"
            for i in range(raw.num_hidden_layers)
        ]
        if not raw.attn_output_gate:
            raise CheckpointError(f"`{path}`: attn_output_gate false is not supported")
        linear = LinearAttentionConfig(
            num_key_heads=raw.linear_num_key_heads,
            num_value_heads=raw.linear_num_value_heads,
            key_head_dim=raw.linear_key_head_dim,
            value_head_dim=raw.linear_value_head_dim,
            conv_kernel=raw.linear_conv_kernel_dim,
        )
        tied = bool(data.get("tie_word_embeddings", raw.tie_word_embeddings))
        return _target(raw, architecture, tuple(layer_types), linear, tied, path)
    if architecture in DENSE_ARCHITECTURES:
        dense = _parse(RawDense, data, path)
        full: LayerType = "full_attention"
        kinds = (full,) * dense.num_hidden_layers
        return _target(dense, architecture, kinds, None, dense.tie_word_embeddings, path)
    known = ", ".join(HYBRID_ARCHITECTURES + DENSE_ARCHITECTURES)
    hint = f"targets that this engine runs: {known}"
    if architecture in DRAFTER_ARCHITECTURES:
        hint = "this is a drafter: pass it as --drafter"
    raise CheckpointError(f"`{path}` names the unknown architecture `{architecture}`", hint=hint)


def _target(
    raw: RawModel,
    architecture: str,
    layer_types: tuple[LayerType, ...],
    linear: LinearAttentionConfig | None,
    tied: bool,
    path: Path,
) -> TargetConfig:
    hybrid = linear is not None
    theta = _usable(lambda: raw.theta, path)
    rotary_dim = _usable(lambda: raw.rotary_dim(0.25 if hybrid else 1.0), path)
    return TargetConfig(
        architecture=architecture,
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_key_value_heads,
        head_dim=raw.head_dim,
        layer_types=layer_types,
        linear=linear,
        rms_norm_eps=raw.rms_norm_eps,
        rope_theta=theta,
        rotary_dim=rotary_dim,
        attention_gate=hybrid,
        zero_centered_norm=hybrid,
        tie_word_embeddings=tied,
        max_position_embeddings=raw.max_position_embeddings,
    )


def _usable(value: Callable[[], _V], path: Path) -> _V:
    try:
        return value()
    except ValueError as error:
        raise CheckpointError(f"`{path}`: {error}") from None


def read_drafter_config(folder: Path) -> DrafterConfig:
    """Read the drafter's `config.json` in `folder`.

    Raises:
        CheckpointError: no such folder or file, an unknown architecture, a missing or unusable
            value.
    """
    data, architecture = _read(folder)
    path = folder / "config.json"
    if architecture not in DRAFTER_ARCHITECTURES:
        hint = f"drafters that this engine runs: {', '.join(DRAFTER_ARCHITECTURES)}"
        if architecture in HYBRID_ARCHITECTURES + DENSE_ARCHITECTURES:
            hint = "this is a target: pass it as --model"
        raise CheckpointError(
            f"`{path}` names the unknown drafter architecture `{architecture}`", hint=hint
        )
    raw = _parse(RawDrafter, data, path)
    # A drafter turns whole heads, whatever factor its config has from its target.
    theta = _usable(lambda: raw.theta, path)
    _usable(lambda: rotated_pairs(raw.head_dim), path)
    layer_types: list[DrafterLayerType] = (
        raw.layer_types or ["full_attention"] * raw.num_hidden_layers
    )
    return DrafterConfig(
        architecture=architecture,
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_key_value_heads,
        head_dim=raw.head_dim,
        layer_types=tuple(layer_types),
        sliding_window=raw.sliding_window,
        causal_sliding=raw.is_causal is not False,
        rms_norm_eps=raw.rms_norm_eps,
        rope_theta=theta,
        block_size=raw.block_size,
        mask_token_id=raw.dflash_config.mask_token_id,
        target_layer_ids=tuple(raw.dflash_config.target_layer_ids),
        num_target_layers=raw.num_target_layers,
        max_position_embeddings=raw.max_position_embeddings,
    )
