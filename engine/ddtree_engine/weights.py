"""Weights from a folder of safetensors, whose names and shapes are checked before any is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ddtree_engine.errors import CheckpointError
from ddtree_engine.json_file import read_json_object
from ddtree_engine.readable import check_readable

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = ("BF16", "F16", "F32", "F64")
"""Kinds of numbers that weights may have, as safetensors names them."""

# Names listed in one message before it says how many more there are.
SHOWN = 5


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of `folder`: those of its index, or the single one.

    Raises:
        CheckpointError: there is neither, the index is unreadable, or a file of it is missing.
    """
    index = folder / INDEX
    if index.is_file():
        weight_map = read_json_object(index).get("weight_map")
        names = weight_map.values() if isinstance(weight_map, dict) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise CheckpointError(
                f"`{index}` is not a weight index",
                hint="its `weight_map` gives the file of every tensor",
            )
        files = [folder / name for name in sorted(set(names))]
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


def tensor_headers(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of every tensor in `folder`, from the files' headers alone."""
    headers: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in weight_files(folder):
        check_readable(file)
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118 - not a mapping
                    header = reader.get_slice(name)
                    headers[name] = tuple(header.get_shape()), header.get_dtype()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"`{file}` is not a readable safetensors file",
                hint="the file may be cut short: compare its size and checksum with the source",
            ) from error
    return headers


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
        CheckpointError: tensors are missing, unexpected, have another shape, or hold numbers that
            mean nothing without scales (8 bits and less); all are named.
    """
    found = tensor_headers(folder)
    wanted = {source_name(name): (name, tuple(p.shape)) for name, p in module.named_parameters()}
    problems = []
    missing = sorted(set(wanted) - set(found))
    if missing:
        problems.append(f"missing: {_some(missing)}")
    extra = sorted(name for name in set(found) - set(wanted) if not ignored(name))
    if extra:
        problems.append(f"unexpected: {_some(extra)}")
    misshapen = [
        f"{name} is {list(found[name][0])}, not {list(shape)}"
        for name, (_, shape) in sorted(wanted.items())
        if name in found and found[name][0] != shape
    ]
    if misshapen:
        problems.append(f"wrong shape: {_some(misshapen)}")
    quantized = [
        f"{name} is {found[name][1]}"
        for name in sorted(set(wanted) & set(found))
        if found[name][1] not in DTYPES
    ]
    if quantized:
        problems.append(f"not one of {', '.join(DTYPES)}: {_some(quantized)}")
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


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
