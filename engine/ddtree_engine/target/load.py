"""A target from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from ddtree_engine.config import TargetConfig
from ddtree_engine.config_file import read_target_config
from ddtree_engine.target.model import TargetModel
from ddtree_engine.weights import check_tensors, load_weights

# Parts of multimodal and multi-token-prediction checkpoints that text decoding does not use.
UNUSED_PREFIXES = ("model.visual.", "visual.", "mtp.", "model.mtp.")
# Gates of the recurrence: a rounding of these is a rounding of every later state.
FLOAT32_PARAMETERS = ("A_log", "dt_bias")


def weight_name(config: TargetConfig, name: str) -> str:
    """Return the checkpoint's name of the parameter `name` of a `TargetModel`."""
    if name.startswith("lm_head."):
        return name
    nested = config.architecture == "Qwen3_5ForConditionalGeneration"
    return f"model.language_model.{name}" if nested else f"model.{name}"


def _ignored(config: TargetConfig, name: str) -> bool:
    tied_head = config.tie_word_embeddings and name == "lm_head.weight"
    return tied_head or name.startswith(UNUSED_PREFIXES)


def _empty(config: TargetConfig) -> TargetModel:
    with torch.device("meta"):
        return TargetModel(config)


def check_target(folder: Path) -> TargetModel:
    """Check the target in `folder` without reading its weights.

    Returns:
        The model, on the meta device: shapes without storage.

    Raises:
        CheckpointError: the folder is not a target that this engine runs, or is damaged.
    """
    config = read_target_config(folder)
    model = _empty(config)
    check_tensors(
        model,
        folder,
        source_name=lambda name: weight_name(config, name),
        ignored=lambda name: _ignored(config, name),
    )
    return model


def load_target(folder: Path, *, device: torch.device, dtype: torch.dtype) -> TargetModel:
    """Load the target in `folder`, for inference.

    Raises:
        CheckpointError: the folder is not a target that this engine runs, or is damaged.
    """
    config = read_target_config(folder)
    model = _empty(config)
    load_weights(
        model,
        folder,
        source_name=lambda name: weight_name(config, name),
        ignored=lambda name: _ignored(config, name),
        device=device,
        dtype=dtype,
        keep_float32=FLOAT32_PARAMETERS,
    )
    model.fuse()
    return model.eval()
