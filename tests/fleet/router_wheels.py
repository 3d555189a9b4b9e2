"""The wheels of the router, from wherever pip gets packages here."""

import subprocess
import sys
from pathlib import Path

from tests.fleet.lab.network import REPOSITORY
from tests.fleet.wheelhouse import python_version


class UnavailableError(Exception):
    """The router has no wheel for this platform."""


def download(folder: Path) -> Path:
    """Fill a folder with the pinned router and what it needs, for the hosts' interpreter.

    Raises:
        UnavailableError: there is none for this processor or Python. That pip fails otherwise is an
            error of the set-up, and no reason to leave tests out.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    which = ["--only-binary=:all:", "--python-version", python_version()]
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
        if "No matching distribution found" in done.stderr:
            raise UnavailableError(f"the router has no wheel for this platform: {last}")
        raise RuntimeError(f"pip cannot download the router: {last}")
    return folder
