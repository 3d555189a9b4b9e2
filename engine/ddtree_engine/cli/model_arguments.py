"""Options that say which models to load and how; shared by the commands that load some."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ddtree_engine.budget_tuner import Budget

if TYPE_CHECKING:
    from ddtree_engine.engine import Engine


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, `--drafter`, `--device`, `--dtype` and `--threads`."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "--model",
        default="bundled",
        metavar="DIR",
        help="Hugging Face folder of the target, or `bundled` for the demo model (default)",
    )
    group.add_argument(
        "--drafter",
        metavar="DIR",
        help="Hugging Face folder of the DFlash drafter, `bundled`, or `none`; by default the "
        "bundled one goes with the bundled target, and another target has none",
    )
    group.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:N, or auto: the first GPU if there is one"
    )
    group.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16"],
        help="of weights and activations; auto is float32 on a CPU, bfloat16 on a GPU",
    )
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads for one operation; by default 1 for a small model, else one a core",
    )


def budget(text: str) -> Budget:
    """Read what `--budget` is given.

    Raises:
        ValueError: neither a number nor `auto`; argparse says so.
    """
    return "auto" if text == "auto" else int(text)


def add_rounds_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--rounds`."""
    parser.add_argument(
        "--rounds",
        choices=["auto", "host", "device"],
        default="auto",
        help="what leads a round: the host, or the device alone, on a GPU as one CUDA graph; auto "
        "is the device on a GPU and the host on a CPU",
    )


def drafter_name(arguments: argparse.Namespace) -> str | None:
    """Return what `--drafter` names, with its default resolved; None for no drafter."""
    if arguments.drafter is None:
        return "bundled" if arguments.model == "bundled" else None
    return None if arguments.drafter == "none" else str(arguments.drafter)


def load_from(
    arguments: argparse.Namespace, device: str | None = None, dtype: str | None = None
) -> Engine:
    """Load what the options name; `device` and `dtype`, where given, instead of theirs.

    Raises:
        EngineError: as `load_engine`.
    """
    from ddtree_engine.engine import load_engine

    return load_engine(
        arguments.model,
        drafter_name(arguments),
        device=device or arguments.device,
        dtype=dtype or arguments.dtype,
        threads=arguments.threads,
    )
