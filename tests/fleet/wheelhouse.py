"""The wheels that the real engine needs on the hosts of a lab, whose Python is /usr/bin/python3."""

import subprocess
import sys
import tomllib
from pathlib import Path

from ddtreectl import bundle
from ddtreectl.env.lock import pinned

ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


def python_version() -> str:
    """Of the hosts' interpreter, `3.11`."""
    command = ["/usr/bin/python3", "-c", ASK]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def download(folder: Path) -> None:
    """Have pip fetch torch and everything else by name, from where it is configured to."""
    constraints = bundle.constraints()
    engine = tomllib.loads((bundle.engine_source() / "pyproject.toml").read_text())
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"),
            *("--only-binary", ":all:", "--python-version", python_version()),
            *("-d", str(folder), "-c", str(constraints)),
            f"torch=={pinned('torch', constraints.read_text())}",
            *engine["project"]["dependencies"],
        ],
        check=True,
        capture_output=True,
        timeout=280,
    )
