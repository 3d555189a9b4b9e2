"""A drafter from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from ddtree_engine.config_file import read_drafter_config
from ddtree_engine.drafter.model import DrafterModel
from ddtree_engine.weights import check_tensors, load_weights


def _empty(folder: Path) -> DrafterModel:
    config = read_drafter_config(folder)
    with torch.device("meta"):
        return DrafterModel(config)


def check_drafter(folder: Path) -> DrafterModel:
    """Check the drafter in `folder` without reading its weights.

    Returns:
        The model, on the meta device: shapes without storage.

    Raises:
        CheckpointError: the folder is not a drafter that this engine runs, or is damaged.
    """
    model = _empty(folder)
    check_tensors(model, folder, source_name=str, ignored=lambda _: False)
    return model


def load_drafter(folder: Path, *, device: torch.device, dtype: torch.dtype) -> DrafterModel:
    """Load the DFlash drafter in `folder`, for inference.

    Raises:
        CheckpointError: the folder is not a drafter that this engine runs, or is damaged.
    """
    model = _empty(folder)
    load_weights(
        model, folder, source_name=str, ignored=lambda _: False, device=device, dtype=dtype
    )
    model.fuse()
    return model.eval()
