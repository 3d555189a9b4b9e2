"""Programs of this machine that the lab calls."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


class LabError(Exception):
    """The lab cannot do what it was asked to."""


def call(*argv: str, cwd: Path | None = None, stdin: str = "") -> str:
    """Run a program to its end and return what it printed.

    Raises:
        LabError: it failed; the message has its words.
    """
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        raise LabError(f"`{' '.join(argv)}`: {said}")
    return done.stdout


def missing_programs(names: Sequence[str]) -> list[str]:
    """Those of the programs that are not in PATH or in /usr/sbin."""
    folders = [Path(folder) for folder in os.get_exec_path()] + [Path("/usr/sbin"), Path("/sbin")]
    return [name for name in names if not any(os.access(f / name, os.X_OK) for f in folders)]
