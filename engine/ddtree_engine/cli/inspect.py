"""`ddtree-engine inspect`: what a checkpoint is and what it needs, without loading it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ddtree_engine.cli.model_arguments import add_model_arguments, drafter_name
from ddtree_engine.errors import EngineError

SUMMARY = "Check a target and its drafter, and print what they are and need."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `inspect`."""
    add_model_arguments(parser)
    parser.add_argument(
        "--max-running", type=int, default=1, metavar="N", help="plan for N requests at once"
    )
    parser.add_argument(
        "--max-context", type=int, default=4096, metavar="N", help="of N tokens (default 4096)"
    )
    parser.add_argument(
        "--budget", type=int, default=64, metavar="N", help="and trees of N nodes (default 64)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the inspection."""
    from ddtree_engine.engine import choose_device, choose_dtype, model_folder
    from ddtree_engine.inspection import inspect_models, plan_deployment

    for option in ("max_running", "max_context", "budget"):
        if getattr(arguments, option) < 1:
            name = option.replace("_", "-")
            raise EngineError(f"--{name} must be 1 or more, got {getattr(arguments, option)}")
    dtype = choose_dtype(arguments.dtype, choose_device(arguments.device))
    given = drafter_name(arguments)
    model = model_folder(arguments.model, "target")
    drafter = None if given is None else model_folder(given, "drafter")
    document = inspect_models(model, drafter, dtype)
    plan = plan_deployment(
        model,
        drafter,
        dtype,
        rows=arguments.max_running,
        context=arguments.max_context,
        budget=arguments.budget,
    )
    document["memory"] = {
        f"{name}_bytes": getattr(plan, name)
        for name in ("weights", "caches", "verification", "workspace", "total")
    }
    if arguments.json:
        print(json.dumps(document))
        return 0
    for part in ("target", "drafter"):
        if document[part] is not None:
            print(f"{part}: {document[part]['path']}")
            _print(document[part])
    print(
        f"memory on a GPU: {arguments.max_running} requests of {arguments.max_context} tokens, "
        f"trees of {arguments.budget}"
    )
    _print(document["memory"])
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
