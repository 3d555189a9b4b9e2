"""Models of a given shape with random weights, made where they run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ddtree_engine.config import check_fit
from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.errors import CheckpointError
from ddtree_engine.target import FLOAT32_PARAMETERS, TargetModel

SHAPES = Path(__file__).parent / "shapes"
DEMO = Path(__file__).parents[1] / "demo"
SCALE = 0.02
"""Standard deviation of a weight: activations stay finite through 64 layers."""


def shape_names() -> list[str]:
    """Names of the shapes that come with the engine."""
    return ["demo", *sorted(path.name for path in SHAPES.iterdir() if path.is_dir())]


def shape_folder(name: str) -> Path:
    """Return the folder of a shape: by name, or the path of one.

    Raises:
        CheckpointError: there is no such shape.
    """
    if name == "demo":
        return DEMO
    for folder in (SHAPES / name, Path(name)):
        if (folder / "target").is_dir() or (folder / "config.json").is_file():
            return folder
    raise CheckpointError(
        f"there is no shape `{name}`",
        hint=f"give one of {', '.join(shape_names())}, a model folder, or a folder with a `target` "
        "and a `drafter`",
    )


def random_models(
    folder: Path, *, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> tuple[TargetModel, DrafterModel | None]:
    """Make a target, and a drafter if the folder has one; only `config.json` is read.

    Raises:
        CheckpointError: a config is not usable, or the two don't fit.
    """
    nested = (folder / "target").is_dir()
    target_config = read_target_config(folder / "target" if nested else folder)
    drafter_config = None
    if nested and (folder / "drafter").is_dir():
        drafter_config = read_drafter_config(folder / "drafter")
        check_fit(drafter_config, target_config)
    with torch.device("meta"):
        target = TargetModel(target_config)
        drafter = None if drafter_config is None else DrafterModel(drafter_config)
    generator = torch.Generator(device).manual_seed(seed)
    for model in (target, drafter):
        if model is not None:
            _fill(model, generator, dtype)
            model.fuse()
            model.eval()
    return target, drafter


def _fill(model: nn.Module, generator: torch.Generator, dtype: torch.dtype) -> None:
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            kind = torch.float32 if name in FLOAT32_PARAMETERS else dtype
            value = torch.empty(parameter.shape, dtype=kind, device=generator.device)
            if name == "A_log":
                value.uniform_(0.0, 2.7, generator=generator)
            else:
                value.normal_(0.0, SCALE, generator=generator)
            if value.ndim == 1 and kind is dtype and not getattr(module, "zero_centered", True):
                value += 1.0
            setattr(module, name, nn.Parameter(value, requires_grad=False))
