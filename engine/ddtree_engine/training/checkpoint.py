"""The state of a training run on disk: safetensors shards and one JSON file, no pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddtree_engine.errors import EngineError

SHARD_BYTES = 14 * 2**20
"""A shard is closed before it grows over this, so that every file stays easy to move."""

STATE = "state.json"
BEST = "best.safetensors"


def save_state(folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes the state so that an interruption at any moment leaves the old or the new one.

    The shards of a save carry its step in their names; ``state.json``, which names them, is
    replaced in one rename, and only then the shards of the save before are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        kept = tensor.detach().to("cpu").contiguous()
        if shards[-1] and size + kept.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = kept
        size += kept.nbytes
    names = [f"state-{facts['step']:06d}-{i:02d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        _save(shard, folder / name)
    _write(folder / STATE, {**facts, "shards": names})
    for old in folder.glob("state-*.safetensors"):
        if old.name not in names:
            old.unlink()


def load_state(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads what :func:`save_state` wrote.

    Raises:
        EngineError: the state is missing or damaged.
    """
    facts = read_facts(folder)
    tensors: dict[str, Tensor] = {}
    for name in facts["shards"]:
        try:
            tensors.update(load_file(folder / name))
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"the training state in `{folder}` is damaged: `{name}`",
                hint="start the run again without --resume",
            ) from error
    return facts, tensors


def read_facts(folder: Path) -> dict[str, Any]:
    """Reads the JSON part of a state alone.

    Raises:
        EngineError: there is none, or it is damaged.
    """
    try:
        facts: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EngineError(
            f"`{folder}` holds no training state", hint="run that part of the training first"
        ) from error
    except (OSError, ValueError) as error:
        raise EngineError(
            f"`{folder / STATE}` is damaged", hint="start the run again without --resume"
        ) from error
    return facts


def save_best(folder: Path, parameters: Mapping[str, Tensor]) -> None:
    """Writes the best parameters so far, in bf16: what evaluation, generation and export use."""
    folder.mkdir(parents=True, exist_ok=True)
    rounded = {
        name: value.detach().to(device="cpu", dtype=torch.bfloat16).contiguous()
        for name, value in parameters.items()
    }
    _save(rounded, folder / BEST)


def load_best(folder: Path) -> dict[str, Tensor]:
    """Reads the parameters of :func:`save_best`, bf16.

    Raises:
        EngineError: there are none, or the file is damaged.
    """
    try:
        return dict(load_file(folder / BEST))
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"`{folder / BEST}` can't be read", hint="run that part of the training first"
        ) from error


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial)
    partial.replace(path)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
