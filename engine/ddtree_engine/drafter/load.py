"""A drafter from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from ddtree_engine.config import read_drafter_config
from ddtree_engine.drafter.model import DrafterModel
from ddtree_engine.weights import load_weights


def load_drafter(folder: Path, *, device: torch.device, dtype: torch.dtype) -> DrafterModel:
    """Load the DFlash drafter in `folder`, for inference.

    Raises:
        CheckpointError: the folder is not a drafter that this engine runs, or is damaged.
    """
    config = read_drafter_config(folder)
    with torch.device("meta"):
        model = DrafterModel(config)
    load_weights(
        model,
        folder,
        source_name=lambda name: name,
        ignored=lambda _: False,
        device=device,
        dtype=dtype,
    )
    return model.eval()
