"""The program that builds environments from wheels, for hosts that do not have it.

The wheel of `uv` carries the program itself, so that ddtreectl's own installation has one for the
operator's platform. For hosts of another platform, the wheelhouse has to hold a wheel of uv.
"""

import platform
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from shlex import quote

from ddtreectl.env.wheelhouse import Wheelhouse, tags_of
from ddtreectl.errors import RefusedError
from ddtreectl.facts.python import Python
from ddtreectl.hosts.transfer import LocalFile

OLDEST = (0, 5)
"""The oldest uv of a host that is made use of: it knows every option that `env.build` gives."""

_VERSION = re.compile(r"uv (\d+)\.(\d+)\S*")


def version() -> str:
    """The version of the uv that ddtreectl brings."""
    return metadata.version("uv")


def find(own: str) -> list[str]:
    """The command that prints where uv is on a host, and its version.

    Args:
        own: where ddtreectl puts the one that it brings.
    """
    script = (
        f'for p in {quote(own)} "$(command -v uv)"; do '
        '[ -x "$p" ] && echo "$p" && "$p" --version && exit 0; done; exit 0'
    )
    return ["sh", "-c", script]


def found(said: str) -> str | None:
    """The path that `find` has printed; None where there is none, or one that is too old."""
    path, _, version_line = said.partition("\n")
    match = _VERSION.match(version_line)
    if match is None or (int(match[1]), int(match[2])) < OLDEST:
        return None
    return path


@contextmanager
def brought(python: Python, wheelhouse: Wheelhouse | None) -> Iterator[LocalFile]:
    """The program as a file, for a host with that interpreter.

    Raises:
        RefusedError: there is none for the host's platform.
    """
    if sys.platform == "linux" and platform.machine() == python.machine:
        from uv import find_uv_bin

        yield LocalFile.of(Path(find_uv_bin()))
        return
    wheels = wheelhouse.fitting("uv", tags_of(python)) if wheelhouse else []
    if not wheels:
        raise RefusedError(
            f"uv is not installed on the host, and none is here for linux_{python.machine}",
            hint="put uv's wheel for that platform into the wheelhouse",
        )
    with (
        tempfile.TemporaryDirectory(prefix="ddtreectl-") as folder,
        zipfile.ZipFile(wheels[-1].file.path) as archive,
    ):
        names = [n for n in archive.namelist() if n.endswith(".data/scripts/uv")]
        if not names:
            raise RefusedError(f"the wheel `{wheels[-1].file.path}` has no uv in it")
        yield LocalFile.of(Path(archive.extract(names[0], folder)))
