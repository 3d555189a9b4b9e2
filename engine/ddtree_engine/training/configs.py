"""Shapes of the demo's two models, as the `config.json` files that their folders carry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a target and its drafter.

    Together the demo's 5.7 million parameters are 11 MiB in bf16.
    """

    hidden: int
    intermediate: int
    layers: int
    interval: int
    key_heads: int
    value_heads: int
    linear_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    target_layer_ids: tuple[int, ...]
    drafter_layers: tuple[str, ...]
    drafter_intermediate: int
    sliding_window: int
    block_size: int


SHAPES: Mapping[str, Shape] = {
    "demo": Shape(
        hidden=192,
        intermediate=512,
        layers=8,
        interval=4,
        key_heads=3,
        value_heads=6,
        linear_dim=32,
        heads=4,
        kv_heads=2,
        head_dim=64,
        max_positions=4096,
        target_layer_ids=(1, 4, 6),
        drafter_layers=("sliding_attention", "sliding_attention", "full_attention"),
        drafter_intermediate=512,
        sliding_window=256,
        block_size=16,
    ),
    "tiny": Shape(
        hidden=32,
        intermediate=48,
        layers=4,
        interval=4,
        key_heads=1,
        value_heads=2,
        linear_dim=16,
        heads=2,
        kv_heads=1,
        head_dim=16,
        max_positions=512,
        target_layer_ids=(0, 2),
        drafter_layers=("sliding_attention", "full_attention"),
        drafter_intermediate=48,
        sliding_window=24,
        block_size=8,
    ),
}
"""``demo`` is what is bundled; ``tiny`` trains in seconds on a CPU, to try the pipeline."""


def target_config(shape: Shape, vocab_size: int, eos: tuple[int, ...]) -> dict[str, Any]:
    """The target's `config.json`, with the keys of the Qwen3.5 text models."""
    rotary_half = shape.head_dim // 8
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "full_attention_interval": shape.interval,
        "layer_types": [
            "full_attention" if (i + 1) % shape.interval == 0 else "linear_attention"
            for i in range(shape.layers)
        ],
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "attn_output_gate": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.linear_dim,
        "linear_value_head_dim": shape.linear_dim,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "max_position_embeddings": shape.max_positions,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [
                rotary_half - 2 * (rotary_half // 3),
                rotary_half // 3,
                rotary_half // 3,
            ],
        },
        "bos_token_id": None,
        "eos_token_id": list(eos),
        "pad_token_id": eos[0],
    }


def drafter_config(
    shape: Shape, vocab_size: int, eos: tuple[int, ...], mask_token_id: int
) -> dict[str, Any]:
    """The drafter's `config.json`, with the keys of the published DFlash drafters."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "dtype": "bfloat16",
        "block_size": shape.block_size,
        "dflash_config": {
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
        },
        "num_target_layers": shape.layers,
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.drafter_intermediate,
        "num_hidden_layers": len(shape.drafter_layers),
        "layer_types": list(shape.drafter_layers),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_sliding_window": "sliding_attention" in shape.drafter_layers,
        "sliding_window": shape.sliding_window,
        "max_window_layers": len(shape.drafter_layers),
        "max_position_embeddings": shape.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "bos_token_id": None,
        "eos_token_id": list(eos),
        "pad_token_id": eos[0],
    }


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes `config.json` into ``folder``, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
