"""What an environment holds and was built for, as it says itself on its host."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddtreectl.env.backends import Backend
from ddtreectl.facts.output import as_int, json_objects

DEADLINE = 300.0


@dataclass(frozen=True)
class Library:
    """A shared object of the environment.

    Attributes:
        path: below site-packages.
        needed: the libraries that it asks the dynamic linker for.
        soname: the name that others ask for it by.
        cxx11_abi: which std::string it passes to torch; None where it passes none.
        glibc: the newest version of glibc that it asks for.
    """

    path: str
    needed: tuple[str, ...]
    soname: str | None = None
    cxx11_abi: bool | None = None
    glibc: tuple[int, int] | None = None


@dataclass(frozen=True)
class Distribution:
    """An installed package.

    Attributes:
        version: its version.
        requires: what it asks for, as in its metadata.
    """

    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Torch:
    """What torch says of itself.

    Attributes:
        version: with the local part, as in `2.11.0+cu128`.
        cuda: the CUDA version that it was built with; None for a build without.
        cxx11_abi: which std::string its functions take.
        arch_list: the architectures that it has code for, as in `sm_90`.
    """

    version: str
    cuda: str | None
    cxx11_abi: bool
    arch_list: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The findings.

    Attributes:
        python: major, minor, micro.
        tag: of the interpreter, `cpython-311`.
        extension: how the names of its compiled modules end.
        libc: the C library of the host, `glibc 2.36`.
        machine: `x86_64`.
        distributions: by normalised name.
        libraries: every shared object.
        torch: None where torch cannot be imported.
        imports: the modules that were tried; None for one that worked, else what it raised.
        importing: the module that was being imported when the interpreter ended.
        complete: whether it came to the end.
    """

    python: tuple[int, ...] = ()
    tag: str = ""
    extension: str = ""
    libc: str = ""
    machine: str = ""
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    torch: Torch | None = None
    imports: Mapping[str, str | None] = field(default_factory=dict)
    importing: str | None = None
    complete: bool = False

    def fingerprint(self) -> dict[str, object]:
        """What is recorded of a finished environment."""
        torch = self.torch
        return {
            "python": ".".join(map(str, self.python)),
            "tag": self.tag,
            "extension": self.extension,
            "libc": self.libc,
            "machine": self.machine,
            "torch": torch.version if torch else None,
            "cuda": torch.cuda if torch else None,
            "cxx11_abi": torch.cxx11_abi if torch else None,
            "arch_list": list(torch.arch_list) if torch else [],
            "packages": {name: entry.version for name, entry in self.distributions.items()},
        }


def program() -> str:
    """The text of the program that makes the findings, for the interpreter's stdin."""
    return Path(__file__).with_name("inspect_environment.py").read_text()


def argv(python: str, backend: Backend) -> list[str]:
    """The command that reads `program` and prints the findings.

    Args:
        python: the interpreter of the environment.
        backend: what is to be importable.
    """
    asked = {
        "torch": "torch",
        "imports": list(backend.imports),
        "distribution": backend.distribution,
        "derive": backend.derive,
    }
    # -I: nothing of the caller's environment; -B: nothing is written into the environment.
    return [python, "-I", "-B", "-", json.dumps(asked)]


def parse(text: str) -> Inspection:
    """The findings; what a program that died early did not say is left out."""
    said: dict[str, object] = {}
    imports: dict[str, str | None] = {}
    importing: str | None = None
    for line in json_objects(text):
        if "importing" in line:
            importing = str(line["importing"])
        elif "imported" in line:
            error = line.get("error")
            imports[str(line["imported"])] = None if error is None else str(error)
            importing = None
        else:
            said.update(line)
    return Inspection(
        python=tuple(n for part in _list(said.get("python")) if (n := as_int(part)) is not None),
        tag=str(said.get("tag") or ""),
        extension=str(said.get("extension") or ""),
        libc=str(said.get("libc") or ""),
        machine=str(said.get("machine") or ""),
        distributions={
            name: Distribution(
                str(entry.get("version") or ""), tuple(map(str, _list(entry.get("requires"))))
            )
            for name, entry in _dict(said.get("distributions")).items()
            if isinstance(entry, dict)
        },
        libraries=tuple(
            _library(entry) for entry in _list(said.get("libraries")) if isinstance(entry, dict)
        ),
        torch=_torch(_dict(said.get("torch"))),
        imports=imports,
        importing=importing,
        complete=said.get("complete") is True,
    )


def _torch(said: dict[str, object]) -> Torch | None:
    if not said:
        return None
    cuda = said.get("cuda")
    return Torch(
        version=str(said.get("version") or ""),
        cuda=None if cuda is None else str(cuda),
        cxx11_abi=said.get("cxx11_abi") is True,
        arch_list=tuple(map(str, _list(said.get("arch_list")))),
    )


def _library(said: dict[str, object]) -> Library:
    glibc = [as_int(part) for part in _list(said.get("glibc"))]
    abi = said.get("cxx11_abi")
    soname = said.get("soname")
    return Library(
        path=str(said.get("path") or ""),
        needed=tuple(map(str, _list(said.get("needed")))),
        soname=str(soname) if soname else None,
        cxx11_abi=abi if isinstance(abi, bool) else None,
        glibc=(glibc[0], glibc[1])
        if len(glibc) == 2 and glibc[0] is not None and glibc[1] is not None
        else None,
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
