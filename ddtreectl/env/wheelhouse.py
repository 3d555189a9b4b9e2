"""A folder of wheels on the operator's machine, from which hosts without a network are provisioned.

It holds what `pip download` puts there. A file `requirements.txt` in it makes the list of packages
exact: then these are installed and nothing is worked out.
"""

import re
import zipfile
import zlib
from dataclasses import dataclass
from email.parser import BytesParser
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from ddtreectl.env.cuda import BUILDS, CPU
from ddtreectl.errors import RefusedError, UsageError
from ddtreectl.facts.python import Python
from ddtreectl.hosts.transfer import LocalFile

OLDEST_GLIBC = 5
"""The oldest glibc that any manylinux tag stands for is 2.5 (PEP 600)."""

UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading an archive raises that is damaged, encrypted, or made in a way that none knows."""

_ALIASES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
_RUNTIME = re.compile(
    r"nvidia-cuda-runtime(?:-cu\d+)?\s*\(?==\s*(\d+)\.(\d+)|cuda-toolkit(?:\[[^]]*\])?\s*\(?==\s*(\d+)\.(\d+)"
)


@dataclass(frozen=True)
class WheelFile:
    """A wheel in a wheelhouse.

    Attributes:
        file: where it is, and its hash.
        name: its file name.
        distribution: the normalised name of what it installs.
        version: of that.
        tags: what it fits.
        unpacked: bytes that its files take.
        entries: how many files these are.
    """

    file: LocalFile
    name: str
    distribution: str
    version: Version
    tags: frozenset[Tag]
    unpacked: int
    entries: int

    def fits(self, tags: frozenset[Tag]) -> bool:
        """Whether an interpreter with these tags can install it."""
        return not self.tags.isdisjoint(tags)


@dataclass(frozen=True)
class Wheelhouse:
    """The wheels of a folder.

    Attributes:
        folder: the folder.
        wheels: in the order of their names.
        requirements: the exact list of what is installed, or None.
    """

    folder: Path
    wheels: tuple[WheelFile, ...]
    requirements: str | None = None

    @classmethod
    def open(cls, folder: Path) -> "Wheelhouse":
        """Read a folder.

        Raises:
            UsageError: there is none, or it holds no wheels.
            RefusedError: one of them is damaged.
        """
        if not folder.is_dir():
            raise UsageError(
                f"the wheelhouse `{folder}` is no folder",
                hint="`pip download -d DIR …` fills one; see docs/guides/provision.md",
            )
        wheels = tuple(_read(path) for path in sorted(folder.glob("*.whl")))
        if not wheels:
            raise UsageError(
                f"the wheelhouse `{folder}` holds no wheels",
                hint="`pip download -d DIR …` fills one; see docs/guides/provision.md",
            )
        listed = folder / "requirements.txt"
        try:
            requirements = listed.read_text(encoding="utf-8") if listed.is_file() else None
        except (OSError, ValueError) as error:
            raise UsageError(f"`{listed}` cannot be read as text", cause=str(error)) from None
        return cls(folder, wheels, requirements)

    @cached_property
    def identity(self) -> str:
        """A name for exactly these files."""
        lines = [f"{wheel.name} {wheel.file.sha256}" for wheel in self.wheels]
        return sha256("\n".join([*lines, self.requirements or ""]).encode()).hexdigest()[:16]

    @property
    def files(self) -> list[LocalFile]:
        """All wheels as files."""
        return [wheel.file for wheel in self.wheels]

    @property
    def bytes(self) -> int:
        """What the wheels take as they are."""
        return sum(file.size for file in self.files)

    def fitting(self, distribution: str, tags: frozenset[Tag]) -> list[WheelFile]:
        """The wheels of a distribution that an interpreter with these tags can install."""
        return [w for w in self.wheels if w.distribution == distribution and w.fits(tags)]

    def torches(self, version: str, python: Python) -> dict[str, WheelFile]:
        """The wheels of torch `version` that fit an interpreter, by CUDA build.

        Raises:
            RefusedError: there is none; the message says what there is.
        """
        found = {
            build: wheel
            for wheel in self.fitting("torch", tags_of(python))
            if wheel.version.public == version and (build := torch_build(wheel)) is not None
        }
        if not found:
            there = [w.name for w in self.wheels if w.distribution == "torch"]
            raise RefusedError(
                f"the wheelhouse has no torch {version} for {_described(python)}",
                cause="\n".join(there) or "it has no torch at all",
                hint="`pip download` takes `--python-version` and `--platform` of the host",
            )
        return found

    def needs(self, tags: frozenset[Tag]) -> tuple[int, int]:
        """Bytes and inodes that an environment of everything that fits takes, at the most."""
        largest: dict[str, WheelFile] = {}
        for wheel in self.wheels:
            known = largest.get(wheel.distribution)
            if wheel.fits(tags) and (known is None or wheel.unpacked > known.unpacked):
                largest[wheel.distribution] = wheel
        size = sum(wheel.unpacked for wheel in largest.values())
        # Byte code takes about as many files as there are modules, and a fifth of their bytes.
        return size + size // 5, 2 * sum(wheel.entries for wheel in largest.values()) + 1000


def tags_of(python: Python) -> frozenset[Tag]:
    """What a wheel may be made for so that an interpreter can install it (PEP 425, PEP 600)."""
    machine = python.machine
    libc = python.glibc
    platforms = [f"linux_{machine}"]
    if libc is not None and libc[0] == 2:
        for minor in range(libc[1], OLDEST_GLIBC - 1, -1):
            platforms.append(f"manylinux_2_{minor}_{machine}")
            if minor in _ALIASES:
                platforms.append(f"{_ALIASES[minor]}_{machine}")
    version = python.version[:2]
    interpreter = f"cp{version[0]}{version[1]}"
    return frozenset(
        [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, interpreter, platforms),
        ]
    )


def torch_build(wheel: WheelFile) -> str | None:
    """The CUDA build of a torch: by its local version, else by the runtime that it requires.

    None for a build that the table of builds does not have.
    """
    label = wheel.version.local
    names = {CPU, *(build.name for build in BUILDS)}
    if label is not None:
        return label if label in names else None
    for line in requirements_of(wheel):
        if match := _RUNTIME.match(line):
            version = tuple(int(part) for part in match.groups() if part is not None)
            return next((build.name for build in BUILDS if build.version == version), None)
    return CPU


def requirements_of(wheel: WheelFile) -> list[str]:
    """The `Requires-Dist` lines of a wheel's metadata.

    Raises:
        RefusedError: it has none that can be read.
    """
    path = wheel.file.path
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            if not names:
                raise _damaged(path, "it has no METADATA")
            message = BytesParser().parsebytes(archive.read(names[0]), headersonly=True)
    except UNREADABLE as error:
        raise _damaged(path, str(error)) from None
    return [str(line) for line in message.get_all("Requires-Dist", [])]


def _read(path: Path) -> WheelFile:
    try:
        distribution, version, _, tags = parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except InvalidWheelFilename as error:
        raise RefusedError(f"`{path}` is not named as a wheel is", cause=str(error)) from None
    except UNREADABLE as error:
        raise _damaged(path, str(error)) from None
    return WheelFile(
        file=LocalFile.of(path),
        name=path.name,
        distribution=str(distribution),
        version=version,
        tags=tags,
        unpacked=sum(entry.file_size for entry in entries),
        entries=len(entries),
    )


def _damaged(path: Path, cause: str) -> RefusedError:
    return RefusedError(f"the wheel `{path}` is damaged", cause=cause, hint="download it again")


def _described(python: Python) -> str:
    tag = f"cp{python.version[0]}{python.version[1]}"
    libc = f"glibc {'.'.join(map(str, python.glibc))}" if python.glibc else "its C library"
    return f"{tag} on linux_{python.machine} with {libc}"
