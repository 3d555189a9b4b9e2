"""The engine's wheel: carried by an installed ddtreectl, built from `engine/` in a checkout.

$DDTREECTL_ENGINE_WHEEL names another one to deploy.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from ddtreectl import bundle
from ddtreectl.errors import DdtreectlError

BUILD_DEADLINE = 300.0
VARIABLE = "DDTREECTL_ENGINE_WHEEL"


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory.

    Attributes:
        name: its file name.
        content: the file.
    """

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Hash of the file."""
        return sha256(self.content).hexdigest()


@cache
def engine_wheel() -> Wheel:
    """The wheel of `ddtree-engine` that this ddtreectl deploys.

    Raises:
        DdtreectlError: there is none and it cannot be built.
    """
    if named := os.environ.get(VARIABLE):
        return _read(Path(named))
    if bundle.installed():
        found = sorted(bundle.engine_wheels().glob("ddtree_engine-*.whl"))
        if len(found) != 1:
            raise DdtreectlError(
                f"this installation of ddtreectl carries {len(found)} engine wheels instead of one",
                hint="install ddtreectl again",
            )
        return _read(found[0])
    with tempfile.TemporaryDirectory(prefix="ddtreectl-") as folder:
        return _build(bundle.engine_source(), Path(folder))


def _build(source: Path, folder: Path) -> Wheel:
    """Build the wheel: with hatchling where it is installed, else as pip builds any package."""
    if importlib.util.find_spec("hatchling"):
        argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    else:
        argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), "."]
    try:
        done = subprocess.run(
            argv, cwd=source, capture_output=True, text=True, timeout=BUILD_DEADLINE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DdtreectlError("the engine's wheel cannot be built", cause=str(error)) from error
    found = sorted(folder.glob("ddtree_engine-*.whl"))
    if done.returncode != 0 or len(found) != 1:
        raise DdtreectlError(
            "the engine's wheel cannot be built",
            cause=done.stderr[-2000:],
            hint="install the build tool: pip install -c constraints.txt hatchling",
        )
    return _read(found[0])


def _read(path: Path) -> Wheel:
    try:
        return Wheel(path.name, path.read_bytes())
    except OSError as error:
        raise DdtreectlError(
            f"the engine's wheel `{path}` cannot be read",
            cause=error.strerror or str(error),
            hint=f"is ${VARIABLE} set?",
        ) from error
