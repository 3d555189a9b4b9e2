"""The wheels of the router, from wherever pip gets packages here."""

import re
import subprocess
import sys
from pathlib import Path

from tests.fleet.lab.network import REPOSITORY

GUEST_PYTHON = "/usr/bin/python3"


class UnavailableError(Exception):
    """They cannot be had here."""


def download(folder: Path) -> Path:
    """Fill a folder with the pinned router and what it needs, for the hosts' interpreter."""
    asked = subprocess.run(
        [GUEST_PYTHON, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    version = re.search(r"\d+\.\d+", asked.stdout)
    if version is None:
        raise UnavailableError(f"{GUEST_PYTHON} does not tell its version")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    which = ["--only-binary=:all:", "--python-version", version[0]]
    pins = ["--constraint", str(REPOSITORY / "constraints.txt")]
    done = subprocess.run(
        [*pip, *which, *pins, "--dest", str(folder), "smg"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UnavailableError(f"pip cannot download smg: {last}")
    return folder
