"""The corpus: the running interpreter's standard library, with held-out modules kept apart."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath

from ddtree_engine.errors import EngineError

EXCLUDED: tuple[tuple[str, str], ...] = (
    ("config-", "build configuration, generated, with this machine's paths"),
    ("_sysconfigdata", "build configuration, generated, with this machine's paths"),
    ("pydoc_data/topics.py", "documentation rendered by a program into one string table"),
    ("encodings/cp", "generated character tables"),
    ("encodings/iso8859", "generated character tables"),
    ("encodings/koi8", "generated character tables"),
    ("encodings/mac_", "generated character tables"),
    ("encodings/tis_620", "generated character tables"),
    ("encodings/hp_roman8", "generated character tables"),
    ("encodings/ptcp154", "generated character tables"),
    ("encodings/kz1048", "generated character tables"),
    ("encodings/palmos", "generated character tables"),
    ("html/entities.py", "a table of names"),
    ("lib2to3/tests/data/", "parser fixtures, not programs"),
    ("test/bad", "files that are wrong on purpose"),
    ("test/encoded_modules/", "files in other encodings, for the decoder's tests"),
    ("test/tokenizedata/", "files that are wrong on purpose"),
    ("lib-tk/", "a copy of tkinter"),
)
"""Path prefixes (under the library's folder) that are left out, with the reason."""

THIRD_PARTY = ("site-packages", "dist-packages")
"""Folders beside the library that are not of it."""

MAX_DIGIT_SHARE = 0.15
"""A file with more digits and backslashes than this among its characters is a table of data."""

MAX_LINE = 2000
"""A file with a longer line than this is generated."""


@dataclass(frozen=True, slots=True)
class Document:
    """One source file: its path under the library, its text, and the module it is."""

    path: str
    text: str

    @property
    def module(self) -> str:
        """Dotted name of the module, a package by its own name."""
        parts = PurePosixPath(self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The two parts of the library and what was left out, by path with the reason."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]
    left_out: dict[str, str]

    @property
    def sha256(self) -> str:
        """Hash over the paths and texts of both parts, in order."""
        digest = hashlib.sha256()
        for part in (self.train, self.held_out):
            for document in part:
                digest.update(document.path.encode() + b"\0" + document.text.encode() + b"\0")
            digest.update(b"\1")
        return digest.hexdigest()


def held_out_modules() -> tuple[str, ...]:
    """The names in ``held_out.txt``, sorted."""
    text = resources.files(__package__).joinpath("held_out.txt").read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(sorted({line for line in lines if line}))


def read_corpus(folder: Path | None = None, held_out: Sequence[str] | None = None) -> Corpus:
    """Reads the library below ``folder`` (default: the running interpreter's).

    The order is that of the paths. A file equal to an earlier one is left out, and so is what
    :data:`EXCLUDED` names, what is a table of data, and what is not UTF-8. The tests of a held-out
    module (``test_<module>``, file or folder) go to neither part.

    Raises:
        EngineError: the folder holds no Python source.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    names = held_out_modules() if held_out is None else tuple(held_out)
    train: list[Document] = []
    apart: list[Document] = []
    left_out: dict[str, str] = {}
    seen: dict[str, str] = {}
    relative = (path.relative_to(folder) for path in folder.rglob("*.py"))
    library = sorted(path.as_posix() for path in relative if path.parts[0] not in THIRD_PARTY)
    if not library:
        raise EngineError(
            f"`{folder}` holds no Python source",
            hint="train with an interpreter whose standard library is installed as source",
        )
    for name in library:
        reason = _excluded(name)
        if reason is None:
            text = _read(folder / name)
            reason = "not UTF-8" if text is None else _unsuitable(text)
        if reason is None and text is not None:
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest in seen:
                reason = f"the same as {seen[digest]}"
            elif is_test_of(name, names):
                reason = "tests of a held-out module"
            else:
                seen[digest] = name
                document = Document(name, text)
                (apart if below_any(document.module, names) else train).append(document)
        if reason is not None:
            left_out[name] = reason
    return Corpus(tuple(train), tuple(apart), left_out)


def below_any(module: str, names: Iterable[str]) -> bool:
    """Whether ``module`` is one of ``names`` or lies below one."""
    return any(module == name or module.startswith(name + ".") for name in names)


def is_test_of(path: str, names: Iterable[str]) -> bool:
    """Whether ``path`` is in the test suite and about one of ``names``."""
    parts = PurePosixPath(path).with_suffix("").parts
    if "test" not in parts[:-1] and "tests" not in parts[:-1]:
        return False
    stems = {name.replace(".", "_") for name in names} | {name.rpartition(".")[2] for name in names}
    wanted = {f"test_{stem}" for stem in stems} | {f"{stem}_tests" for stem in stems}
    return any(part in wanted for part in parts)


def _excluded(path: str) -> str | None:
    return next((reason for prefix, reason in EXCLUDED if path.startswith(prefix)), None)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


def _unsuitable(text: str) -> str | None:
    if not text.strip():
        return "empty"
    if max(map(len, text.split("\n"))) > MAX_LINE:
        return f"generated: a line of over {MAX_LINE} characters"
    if len(re.findall(r"[0-9\\]", text)) > MAX_DIGIT_SHARE * len(text):
        return "a table of data"
    return None
