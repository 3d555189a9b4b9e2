"""A tiny checkpoint, and servers of it: in this process, or as a process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_engine.engine import Engine, load_engine
from tests.engine.serving.checkpoint import write_checkpoint
from tests.engine.serving.server_process import ServerProcess


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def engine(checkpoint: tuple[Path, Path]) -> Engine:
    target, drafter = checkpoint
    return load_engine(target, drafter, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def server(checkpoint: tuple[Path, Path]) -> Iterator[ServerProcess]:
    """A server in tree mode that tests share; they leave it idle."""
    target, drafter = checkpoint
    options = ["--model", str(target), "--drafter", str(drafter), "--budget", "24"]
    with ServerProcess(*options, "--max-running", "3", "--max-context", "6000") as process:
        process.wait_until_ready()
        yield process
