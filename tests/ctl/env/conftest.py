"""Environments that uv builds from wheels of this folder."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from uv import find_uv_bin

from ddtreectl.env import inspection
from ddtreectl.env.backends import BACKENDS
from ddtreectl.env.inspection import Inspection

Inspect = Callable[[Sequence[Path]], Inspection]


@pytest.fixture
def inspect(tmp_path: Path) -> Inspect:
    """Installs wheels as they are into a new environment and inspects it."""

    def installed(wheels: Sequence[Path]) -> Inspection:
        uv = [find_uv_bin(), "--offline", "--no-config", "--cache-dir", str(tmp_path / "cache")]
        folder = str(tmp_path / "environment")
        python = f"{folder}/bin/python"
        subprocess.run(
            [*uv, "-q", "venv", "--clear", "--python", sys.executable, folder], check=True
        )
        install = [*uv, "-q", "pip", "install", "--no-deps", "--no-index", "--python", python]
        subprocess.run([*install, *map(str, wheels)], check=True)
        done = subprocess.run(
            inspection.argv(python, BACKENDS["engine"]),
            input=inspection.program(),
            capture_output=True,
            text=True,
            check=False,
        )
        return inspection.parse(done.stdout)

    return installed
