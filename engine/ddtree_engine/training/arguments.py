"""Options of `ddtree-engine train`, and what their numbers may be. Knows no PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path

from ddtree_engine.errors import EngineError
from ddtree_engine.training.configs import SHAPES

PARTS = ("corpus", "target", "generate", "drafter", "export")

RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**32 - 1),
    "steps": (1, 2**31),
    "seconds": (1, 1e7),
    "time_limit": (0, 1e7),
    "learning_rate": (1e-9, 1.0),
    "warmup": (0, 2**31),
    "evaluate_every": (1, 2**31),
    "batch": (1, 2**20),
    "length": (2, 2**20),
    "dropout": (0.0, 0.9),
    "rows": (1, 2**31),
    "rows_at_once": (1, 2**20),
    "row_length": (8, 2**20),
    "drafter_batch": (1, 2**20),
    "anchors": (1, 2**20),
}
"""What each number of a run may be, from and to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `train` to ``parser``; `command.run` takes what it parses."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, text in (
        ("corpus", "read the standard library, train the tokenizer"),
        ("target", "train the target from scratch"),
        ("generate", "let the target write the drafter's training text"),
        ("drafter", "train the drafter"),
        ("export", "write both models as Hugging Face folders, with a model card and prompts"),
        ("all", "every part in turn"),
    ):
        part = parts.add_parser(name, help=text, description=text)
        part.add_argument("--out", type=Path, required=True, help="folder of the run")
        part.add_argument("--shape", choices=sorted(SHAPES), default="demo")
        part.add_argument("--seed", type=int, default=0)
        if name in ("target", "generate", "drafter", "all"):
            part.add_argument("--device", default="auto", help="auto, cpu or cuda[:N]")
        if name in ("target", "drafter", "all"):
            _add_training(part)
        if name in ("target", "all"):
            part.add_argument("--batch", type=int, default=64, help="windows a step")
            part.add_argument("--length", type=int, default=1024, help="tokens a window")
            part.add_argument("--dropout", type=float, default=0.05)
        if name in ("generate", "all"):
            part.add_argument("--rows", type=int, default=49152, help="sequences to generate")
            part.add_argument("--rows-at-once", type=int, default=4096)
            part.add_argument("--row-length", type=int, default=1024)
        if name in ("drafter", "all"):
            part.add_argument("--drafter-batch", type=int, default=64, help="sequences a step")
            part.add_argument("--anchors", type=int, default=128, help="blocks a sequence")
        if name in ("export", "all"):
            part.add_argument("--to", type=Path, help="folder for the models (default: OUT/export)")


def _add_training(part: argparse.ArgumentParser) -> None:
    part.add_argument("--steps", type=int, help="optimizer steps (default: from --seconds)")
    part.add_argument(
        "--seconds", type=float, default=420.0, help="choose the steps to take about this long"
    )
    part.add_argument(
        "--time-limit", type=float, help="stop with a checkpoint after this many seconds"
    )
    part.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    part.add_argument("--learning-rate", type=float, default=3e-3, help="highest learning rate")
    part.add_argument("--warmup", type=int, default=100, help="steps of linear warm-up")
    part.add_argument("--evaluate-every", type=int, default=250, help="steps")
    part.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU only"
    )


def check_ranges(args: argparse.Namespace) -> None:
    """Refuses a number that is out of its range.

    Raises:
        EngineError: one is.
    """
    for name, (low, high) in RANGES.items():
        value = getattr(args, name, None)
        if value is not None and not low <= value <= high:
            option = f"--{name.replace('_', '-')}"
            raise EngineError(f"{option} must be from {low:g} to {high:g}, got {value}")
