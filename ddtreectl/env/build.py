"""The commands that build an environment on a host.

An environment is made at its final path, because a virtual environment cannot move. It counts as
finished once `environment.json` is there, and that file is put last, by an atomic rename: a build
that was interrupted leaves a folder without it, which the next build removes. Each command holds a
lock while it runs: an installer may outlive an operator who was killed, and the next build waits
for it.

From a wheelhouse, uv builds it: without a network, without python3-venv on the host, and with each
unpacked wheel on the disk once, however many environments hold it. Without a wheelhouse, the host's
own pip does, because where packages come from is said by the host's pip configuration, which uv
does not read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

MARKER = "environment.json"
BUILD_DEADLINE = 3600.0
LOCK_WAIT = 900
BYTE_CODE_SECONDS = 600


@dataclass(frozen=True)
class Offline:
    """How uv finds everything on the host.

    Attributes:
        uv: the program.
        wheels: the folder with the wheels.
        cache: where unpacked wheels are kept.
    """

    uv: str
    wheels: str
    cache: str

    @property
    def command(self) -> list[str]:
        """A uv with no configuration, no network and no interpreter but those of the host."""
        return [
            *("env", f"UV_COMPILE_BYTECODE_TIMEOUT={BYTE_CODE_SECONDS}"),
            *(self.uv, "--quiet", "--no-progress", "--no-config", "--offline"),
            *("--no-python-downloads", "--cache-dir", self.cache),
        ]


def create(python: str, folder: str, source: Offline | None = None) -> list[str]:
    """Remove what an interrupted build left, and make an empty environment."""
    where = quote(folder)
    if source is None:
        make = f"exec {quote(python)} -m venv {where}"
    else:
        make = f'exec "$@" venv --python {quote(python)} {where}'
    script = f"set -e; rm -rf {where}; {make}"
    words = source.command if source else []
    return _locked(folder, ["sh", "-c", script, "ddtreectl-create", *words])


def install(
    folder: str,
    packages: Sequence[str],
    *,
    constraints: str | None = None,
    requirements: str | None = None,
    source: Offline | None = None,
) -> list[str]:
    """Install packages.

    Args:
        folder: the environment.
        packages: paths of wheels, and names with versions.
        constraints: a file with versions that everything keeps to.
        requirements: a file with the exact list of packages; then nothing else is added to it.
        source: where uv finds them; None for the host's own pip.
    """
    python = f"{folder}/bin/python"
    if source is None:
        words = [python, "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
        words.append("--disable-pip-version-check")
    else:
        words = [*source.command, "pip", "install", "--python", python, "--no-index"]
        words += ["--find-links", source.wheels, "--link-mode", "hardlink", "--compile-bytecode"]
    if constraints is not None:
        words += ["--constraint", constraints]
    if requirements is not None:
        words += ["--no-deps", "--requirement", requirements]
    return _locked(folder, [*words, *packages])


def marker(name: str, abi: str, fingerprint: dict[str, object], **more: object) -> bytes:
    """The content of the file that makes an environment count as finished."""
    content = {"name": name, "abi": abi, "fingerprint": fingerprint, **more}
    return json.dumps(content, sort_keys=True).encode()


def _locked(folder: str, argv: Sequence[str]) -> list[str]:
    """`argv` under the lock of an environment; services of any user can read what it makes."""
    lock = ["flock", "-w", str(LOCK_WAIT), "-E", "75", f"{folder}.lock"]
    return [*lock, "sh", "-c", 'umask 022; exec "$@"', "ddtreectl-build", *argv]
