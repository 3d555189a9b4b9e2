"""`ddtree-engine inspect`: what a checkpoint is and what it needs, without loading it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ddtree_engine.cli.model_arguments import add_model_arguments, drafter_name

SUMMARY = "Check a target and its drafter, and print what they are and need."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `inspect`."""
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the inspection."""
    from ddtree_engine.engine import choose_device, choose_dtype, model_folder
    from ddtree_engine.inspection import inspect_models

    dtype = choose_dtype(arguments.dtype, choose_device(arguments.device))
    name = drafter_name(arguments)
    document = inspect_models(
        model_folder(arguments.model, "target"),
        None if name is None else model_folder(name, "drafter"),
        dtype,
    )
    if arguments.json:
        print(json.dumps(document))
        return 0
    for part in ("target", "drafter"):
        if document[part] is not None:
            print(f"{part}: {document[part]['path']}")
            _print(document[part])
    return 0


def _print(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if name == "path":
            continue
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        if name.endswith("_bytes") or "_bytes_" in name:
            shown = f"{value:,} ({_binary(value)})"
        elif isinstance(value, list):
            shown = ", ".join(map(str, value))
        print(f"  {name.replace('_', ' '):<28} {shown}")


def _binary(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
