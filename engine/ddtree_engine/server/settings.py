"""What one server is told at its start, checked as far as that needs no model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddtree_engine.budget_tuner import MOST, Budget
from ddtree_engine.errors import EngineError
from ddtree_engine.readable import reading_hint
from ddtree_engine.tree import MAX_BUDGET, MAX_TOPK

ModeName = Literal["ar", "linear", "shadow", "tree"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one server; see `ddtree-engine serve --help`.

    Raises:
        EngineError: a value outside its range.
    """

    model: str
    drafter: str | None
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    mode: ModeName = "tree"
    budget: Budget = 16
    topk: int = 8
    host: str = "127.0.0.1"
    port: int = 30001
    max_running: int = 4
    max_queue: int = 64
    max_context: int | None = None
    served_model_name: str
    drain_timeout: float = 30.0
    recurrent_state: Literal["exact", "leak"] = "exact"
    rounds: Literal["auto", "host", "device"] = "auto"
    api_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("--budget", self.most_nodes, 1, MAX_BUDGET),
            ("--topk", self.topk, 1, MAX_TOPK),
            ("--port", self.port, 0, 65535),
            ("--max-running", self.max_running, 1, 1024),
            ("--max-queue", self.max_queue, 0, 1_000_000),
            ("--max-context", 2 if self.max_context is None else self.max_context, 2, 1 << 24),
            ("--drain-timeout", self.drain_timeout, 0, 86400),
        ):
            if not low <= value <= high:
                raise EngineError(f"{name} must be from {low} to {high}, got {value}")
        try:
            self.served_model_name.encode()
        except UnicodeEncodeError as error:  # every answer has it, and /metrics
            raise EngineError(
                "the name of the model is not Unicode text", hint="give a --served-model-name"
            ) from error
        if not self.served_model_name:
            raise EngineError("--served-model-name is empty")
        if self.drafter is None and self.mode != "ar":
            raise EngineError(
                f"mode `{self.mode}` needs a drafter",
                hint="give --drafter, or serve with --mode ar",
            )

    @property
    def most_nodes(self) -> int:
        """Nodes besides the root that a tree may have."""
        return MOST if self.budget == "auto" else self.budget


def read_api_keys(path: Path) -> tuple[str, ...]:
    """Read the keys that clients may use, one a line.

    Where systemd hands over a credential of the file's name ($CREDENTIALS_DIRECTORY), that is read
    instead: the file itself may be for root's eyes only.

    Raises:
        EngineError: the file can't be read, or has no key.
    """
    handed_over = Path(os.environ.get("CREDENTIALS_DIRECTORY", ""), path.name)
    if handed_over.is_absolute() and handed_over.is_file():
        path = handed_over
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(
            f"the API key file `{path}` can't be read",
            hint=reading_hint(path, error, "a text file with one key a line"),
        ) from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise EngineError(
            f"the API key file `{path}` has no key", hint="write one key a line into it"
        )
    return keys
