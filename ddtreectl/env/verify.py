"""Whether an environment is what was asked for, and whether its packages fit each other.

What can be seen without running anything comes first: it names the package at fault, where an
import says no more than which symbol the dynamic linker missed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddtreectl.env.backends import Backend
from ddtreectl.env.cuda import CPU, Capability, build_of
from ddtreectl.env.inspection import Inspection
from ddtreectl.env.messages import PROVISION, explain

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)")
_SUFFIX = re.compile(r"nvidia-.*-cu(\d+)")
_ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d+)(\d)[a-z]?")
_EXTENSION = re.compile(r"\.(cpython-\d+)[^/]*\.so$")
_FOLLOWS_CUDA = frozenset(
    {"nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cuda-cupti", "nvidia-nvjitlink"}
)
"""Packages without a suffix whose version is that of CUDA, as they are from CUDA 13 on."""


@dataclass(frozen=True)
class Expected:
    """What an environment is to be.

    Attributes:
        backend: what it serves.
        build: the CUDA build, or `cpu`; None where any will do.
        torch: the version of torch without its local part; None where any will do.
        capabilities: the compute capabilities that it is to run on.
        unused: packages that the service is told not to use, whatever state they are in.
    """

    backend: Backend
    build: str | None = None
    torch: str | None = None
    capabilities: tuple[Capability, ...] = ()
    unused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Problem:
    """Something that does not fit.

    Attributes:
        what: what it is.
        cause: why, as far as it is known.
        hint: what to do.
    """

    what: str
    cause: str = ""
    hint: str = PROVISION

    def __str__(self) -> str:
        """How messages show it."""
        return f"{self.what}\n  {self.cause}".rstrip() if self.cause else self.what


def problems(found: Inspection, expected: Expected) -> list[Problem]:
    """Everything that does not fit; empty for an environment that is to be used."""
    if not found.distributions:
        return [Problem("the interpreter of the environment does not run")]
    return [
        *_torch(found, expected),
        *_mixed(found),
        *_cuda_libraries(found),
        *_cxx11_abi(found),
        *_glibc(found),
        *_python_tag(found),
        *_requirements(found, expected),
        *_imports(found, expected),
    ]


def cuda_major(found: Inspection) -> int | None:
    """The CUDA major version of torch; None for a build without CUDA, and without torch."""
    cuda = found.torch.cuda if found.torch else None
    major = (cuda or "").partition(".")[0]
    return int(major) if major.isdecimal() else None


def runs_on(arch_list: tuple[str, ...], capability: Capability) -> bool:
    """Whether `arch_list` has machine code for a compute capability."""
    return any(
        match and int(match[1]) == capability[0] and int(match[2]) <= capability[1]
        for match in map(_ARCHITECTURE.fullmatch, arch_list)
    )


def _torch(found: Inspection, expected: Expected) -> Iterator[Problem]:
    torch = found.torch
    if torch is None:
        return  # its import tells why
    version = torch.version.partition("+")[0]
    if expected.torch and version != expected.torch:
        yield Problem(f"torch is {torch.version}, and {expected.torch} was asked for")
    if expected.build == CPU and torch.cuda is not None:
        yield Problem(
            f"torch {torch.version} is a build for CUDA {torch.cuda}, and one for the CPU was "
            "asked for"
        )
    build = build_of(expected.build or "")
    if build is not None:
        wanted = ".".join(map(str, build.version))
        if torch.cuda is None:
            yield Problem(
                f"torch {torch.version} is a build for the CPU, and {build.name} was asked for",
                hint="give a wheelhouse with the torch of that build: `--wheelhouse DIR`",
            )
        elif not f"{torch.cuda}.".startswith(f"{wanted}."):
            yield Problem(
                f"torch {torch.version} is a build for CUDA {torch.cuda}, and {build.name} was "
                "asked for",
                hint="give a wheelhouse with the torch of that build: `--wheelhouse DIR`",
            )
    for capability in sorted(set(expected.capabilities)):
        if torch.cuda is not None and not runs_on(torch.arch_list, capability):
            yield Problem(
                f"torch {torch.version} has no machine code for compute capability "
                f"{capability[0]}.{capability[1]}",
                cause=f"it has: {', '.join(torch.arch_list)}",
            )


def _mixed(found: Inspection) -> Iterator[Problem]:
    by_major: dict[int, list[str]] = {}
    for name, entry in found.distributions.items():
        if match := _SUFFIX.fullmatch(name):
            by_major.setdefault(int(match[1]), []).append(name)
        elif name in _FOLLOWS_CUDA and (major := entry.version.partition(".")[0]).isdecimal():
            by_major.setdefault(int(major), []).append(name)
    if len(by_major) > 1:
        listed = "\n  ".join(
            f"CUDA {major}: {', '.join(sorted(names))}" for major, names in sorted(by_major.items())
        )
        yield Problem(
            "libraries of more than one CUDA major version are installed",
            cause=listed,
            hint="which one a process gets depends on the order of its imports; "
            f"have those of torch alone. {PROVISION}",
        )


def _cuda_libraries(found: Inspection) -> Iterator[Problem]:
    major = cuda_major(found)
    if found.torch is None:
        return
    seen: dict[tuple[str, str], list[str]] = {}
    for library in found.libraries:
        package = library.path.partition("/")[0]
        if package in {"torch", "nvidia"}:
            continue
        for name in library.needed:
            match = _CUDA_LIBRARY.fullmatch(name)
            if match and int(match[1]) != major and name.startswith(("libcudart", "libcublas")):
                seen.setdefault((package, name), []).append(library.path)
    torch = found.torch
    built = f"CUDA {torch.cuda}" if torch.cuda else "the CPU"
    for (package, name), paths in seen.items():
        needs = name.rpartition(".")[2]
        yield Problem(
            f"`{package}` was built for CUDA {needs}, and torch {torch.version} for {built}",
            cause=f"{_listed(paths)} needs {name}",
            hint=f"use the {package} that was built for torch's CUDA. {PROVISION}",
        )


def _cxx11_abi(found: Inspection) -> Iterator[Problem]:
    if found.torch is None:
        return
    wrong: dict[str, list[str]] = {}
    for library in found.libraries:
        package = library.path.partition("/")[0]
        if package != "torch" and library.cxx11_abi not in {None, found.torch.cxx11_abi}:
            wrong.setdefault(package, []).append(library.path)
    for package, paths in wrong.items():
        ours, theirs = ("new", "old") if found.torch.cxx11_abi else ("old", "new")
        yield Problem(
            f"`{package}` was built for the {theirs} C++ ABI, and torch {found.torch.version} has "
            f"the {ours} one",
            cause=f"{_listed(paths)}: _GLIBCXX_USE_CXX11_ABI is {int(not found.torch.cxx11_abi)} "
            f"there and {int(found.torch.cxx11_abi)} in torch",
            hint=f"use the {package} that was built for this torch. {PROVISION}",
        )


def _glibc(found: Inspection) -> Iterator[Problem]:
    host = _numbers(found.libc.rpartition(" ")[2]) if "glibc" in found.libc else None
    if host is None:
        return
    newer: dict[str, tuple[tuple[int, int], str]] = {}
    for library in found.libraries:
        package = library.path.partition("/")[0]
        if library.glibc is not None and library.glibc > max(host, newer.get(package, (host,))[0]):
            newer[package] = (library.glibc, library.path)
    for package, (version, path) in newer.items():
        yield Problem(
            f"`{package}` needs glibc {version[0]}.{version[1]}, the host has {host[0]}.{host[1]}",
            cause=path,
            hint="use a wheel whose manylinux tag the host's glibc satisfies",
        )


def _python_tag(found: Inspection) -> Iterator[Problem]:
    tags: dict[str, set[str]] = {}
    for library in found.libraries:
        if match := _EXTENSION.search(library.path):
            tags.setdefault(library.path[: match.start()], set()).add(match[1])
    for module, present in sorted(tags.items()):
        if found.tag and found.tag not in present:
            yield Problem(
                f"`{module}` is compiled for {', '.join(sorted(present))}, and the environment is "
                f"{found.tag}",
                hint=f"use a wheel for this Python. {PROVISION}",
            )


def _requirements(found: Inspection, expected: Expected) -> Iterator[Problem]:
    """Versions that break what an installed package asks for; and what the backend lacks."""
    from packaging.utils import canonicalize_name

    for name, entry in sorted(found.distributions.items()):
        for requirement in _applicable(entry.requires, found):
            wanted = canonicalize_name(requirement.name)
            installed = found.distributions.get(wanted)
            if wanted in expected.unused:
                continue
            if installed is None:
                if expected.backend.derive and name == expected.backend.distribution:
                    yield Problem(f"`{wanted}` is not installed, and {name} requires it")
                continue
            if not _satisfies(installed.version, requirement):
                yield Problem(
                    f"`{wanted}` is {installed.version}, and {name} {entry.version} asks for "
                    f"{requirement.specifier}",
                    hint=f"put {wanted}{requirement.specifier} into the wheelhouse. {PROVISION}",
                )
    if expected.backend.distribution not in found.distributions:
        yield Problem(f"`{expected.backend.distribution}` is not installed")


def _applicable(lines: tuple[str, ...], found: Inspection) -> "Iterator[Requirement]":
    from packaging.requirements import InvalidRequirement, Requirement

    environment = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": found.machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": ".".join(map(str, found.python)),
        "python_version": ".".join(map(str, found.python[:2])),
        "sys_platform": "linux",
    }
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def _satisfies(version: str, requirement: "Requirement") -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _imports(found: Inspection, expected: Expected) -> Iterator[Problem]:
    owners: Mapping[str, str] = expected.backend.imports
    for module, said in found.imports.items():
        if said is None or owners.get(module) in expected.unused:
            continue
        known = explain(said)
        yield Problem(
            f"`{module}` cannot be imported",
            cause="\n  ".join([said[-1500:], *([known.cause] if known else [])]),
            hint=known.hint if known else f"reinstall {owners.get(module, module)}. {PROVISION}",
        )
    if found.importing is not None:
        yield Problem(
            f"the interpreter ends while it imports `{found.importing}`",
            cause="a crash in compiled code, or the end of its time or memory",
            hint="is the package built for this CPU, torch and CUDA?",
        )
    elif not found.complete:
        yield Problem("the inspection of the environment did not come to its end")


def _numbers(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
