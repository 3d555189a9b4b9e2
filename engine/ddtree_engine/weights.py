"""Weights from a folder of safetensors, whose names and shapes are checked before any is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ddtree_engine.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# Names listed in one message before it says how many more there are.
SHOWN = 5


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of `folder`: those of its index, or the single one.

    Raises:
        CheckpointError: there is neither, the index is unreadable, or a file of it is missing.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"`{index}` is not a weight index") from error
        files = [folder / name for name in names]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise CheckpointError(
                f"`{index}` names files that are not there: {_some(missing)}",
                hint="finish the download of the checkpoint",
            )
        return files
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise CheckpointError(f"`{folder}` has neither {SINGLE} nor {INDEX}")


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in `folder`, from the files' headers alone."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118 - not a mapping
                    shapes[name] = tuple(reader.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"`{file}` is not a readable safetensors file",
                hint="the file may be cut short: compare its size and checksum with the source",
            ) from error
    return shapes


def check_tensors(
    module: nn.Module,
    folder: Path,
    *,
    source_name: Callable[[str], str],
    ignored: Callable[[str], bool],
) -> dict[str, str]:
    """Compare the tensors of `folder` with the parameters of `module`, reading headers alone.

    Args:
        module: what the tensors are for; it may be on the meta device.
        folder: the checkpoint.
        source_name: the checkpoint's name of a parameter of `module`.
        ignored: whether a tensor that `module` does not have may be in the checkpoint.

    Returns:
        The parameter for each tensor that is wanted.

    Raises:
        CheckpointError: tensors are missing, unexpected, or have another shape; all are named.
    """
    found = tensor_shapes(folder)
    wanted = {source_name(name): (name, tuple(p.shape)) for name, p in module.named_parameters()}
    problems = []
    missing = sorted(set(wanted) - set(found))
    if missing:
        problems.append(f"missing: {_some(missing)}")
    extra = sorted(name for name in set(found) - set(wanted) if not ignored(name))
    if extra:
        problems.append(f"unexpected: {_some(extra)}")
    misshapen = [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, (_, shape) in sorted(wanted.items())
        if name in found and found[name] != shape
    ]
    if misshapen:
        problems.append(f"wrong shape: {_some(misshapen)}")
    if problems:
        raise CheckpointError(
            f"the tensors in `{folder}` do not match its config.json: {'; '.join(problems)}"
        )
    return {source: name for source, (name, _) in wanted.items()}


def load_weights(
    module: nn.Module,
    folder: Path,
    *,
    source_name: Callable[[str], str],
    ignored: Callable[[str], bool],
    device: torch.device,
    dtype: torch.dtype,
    keep_float32: Iterable[str] = (),
) -> None:
    """Give every parameter of `module` (which may be on the meta device) its tensor from `folder`.

    Tensors are assigned, so that nothing is held twice, and need no gradient.

    Args:
        module: as in `check_tensors`, like the next three.
        folder: the checkpoint.
        source_name: the checkpoint's name of a parameter.
        ignored: whether a tensor may be left.
        device: where the tensors go.
        dtype: what they become, except
        keep_float32: parameters whose last name part is here stay in float32.

    Raises:
        CheckpointError: as `check_tensors`; nothing has been loaded.
    """
    wanted = check_tensors(module, folder, source_name=source_name, ignored=ignored)
    exact = frozenset(keep_float32)
    state: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as reader:
            for source in reader.keys():  # noqa: SIM118 - not a mapping
                if source not in wanted:
                    continue
                name = wanted[source]
                kind = torch.float32 if name.rpartition(".")[2] in exact else dtype
                state[name] = reader.get_tensor(source).to(device=device, dtype=kind)
    module.load_state_dict(state, assign=True)
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def fingerprint(folder: Path) -> str:
    """Return `sha256:…` over config.json and the content of the weight files, in name order."""
    digest = hashlib.sha256()
    for file in [folder / "config.json", *sorted(weight_files(folder))]:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
    return f"sha256:{digest.hexdigest()}"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
