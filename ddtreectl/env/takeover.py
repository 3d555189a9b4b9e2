"""Whether the environment of one host can serve on another: every mismatch, by name. Pure."""

from dataclasses import dataclass

from ddtreectl.env.backends import Backend
from ddtreectl.env.cuda import AUTO, CPU, Accelerators, build_of, objections
from ddtreectl.env.inspection import Inspection
from ddtreectl.env.verify import Expected, problems, runs_on
from ddtreectl.facts.python import Python


@dataclass(frozen=True)
class Destination:
    """What an environment has to fit.

    Attributes:
        name: the host.
        python: the interpreter that the environment would run on there, at the path that it names;
            None where there is none.
        interpreter: that path.
        host: its driver and GPUs.
        environments: where environments are.
        torch: the version of torch that is wanted; None where any will do.
        cuda: the CUDA build that is wanted, or `auto`.
        engine: the hash of the engine's wheel that is deployed; None for another backend.
    """

    name: str
    python: Python | None
    interpreter: str
    host: Accelerators
    environments: str
    torch: str | None = None
    cuda: str = AUTO
    engine: str | None = None


@dataclass(frozen=True)
class Origin:
    """An environment where it is now.

    Attributes:
        name: the host.
        found: what the environment says of itself.
        backend: what it serves.
        build: its CUDA build.
        environments: where environments are there.
        engine: the hash of the engine's wheel that it was built with.
    """

    name: str
    found: Inspection
    backend: Backend
    build: str
    environments: str
    engine: str = ""


def mismatches(origin: Origin, to: Destination) -> list[str]:
    """Everything that speaks against it; empty where the environment can be taken over as it is."""
    found = origin.found
    own = Expected(origin.backend, build=None if origin.build == CPU else origin.build)
    return [
        *(f"on `{origin.name}` itself: {problem.what}" for problem in problems(found, own)),
        *_python(found, to),
        *_glibc(found, to),
        *_torch(origin, to),
        *_gpus(origin, to),
        *_place(origin, to),
    ]


def _python(found: Inspection, to: Destination) -> list[str]:
    theirs = ".".join(map(str, found.python[:2]))
    if to.python is None:
        return [f"Python: `{to.interpreter}`, which it runs on, is not on `{to.name}`"]
    told = []
    ours = ".".join(map(str, to.python.version[:2]))
    if ours != theirs:
        told.append(f"Python: it is for {theirs}, and `{to.interpreter}` is {ours} on `{to.name}`")
    if found.machine and found.machine != to.python.machine:
        told.append(
            f"processor: it is for {found.machine}, and `{to.name}` is a {to.python.machine}"
        )
    return told


def _glibc(found: Inspection, to: Destination) -> list[str]:
    host = to.python.glibc if to.python else None
    newest = max(
        ((library.glibc, library.path) for library in found.libraries if library.glibc),
        default=None,
    )
    if host is None or newest is None or newest[0] <= host:
        return []
    (major, minor), path = newest
    return [f"glibc: {path} needs {major}.{minor}, and `{to.name}` has {host[0]}.{host[1]}"]


def _torch(origin: Origin, to: Destination) -> list[str]:
    torch = origin.found.torch
    if torch is None:
        return []  # its import has told why
    told = []
    version = torch.version.partition("+")[0]
    if to.torch is not None and version != to.torch:
        told.append(f"torch: it has {torch.version}, and {to.torch} is wanted on `{to.name}`")
    if to.cuda not in {AUTO, origin.build}:
        told.append(f"CUDA: it is built for {origin.build}, and {to.cuda} is wanted on `{to.name}`")
    return told


def _gpus(origin: Origin, to: Destination) -> list[str]:
    if not to.host.needed:
        return []
    if to.host.driver is None:
        return [f"driver: none is loaded on `{to.name}`, and its services use GPUs"]
    build = build_of(origin.build)
    if build is None:
        return [f"CUDA: it is built for {origin.build}, and services of `{to.name}` use GPUs"]
    told = [f"{build.name}: {reason}" for reason in objections(build, to.host)]
    torch = origin.found.torch
    for capability in sorted({entry for entry in to.host.capabilities if entry is not None}):
        if torch is not None and not runs_on(torch.arch_list, capability):
            text = ".".join(map(str, capability))
            told.append(
                f"architectures: torch has {', '.join(torch.arch_list)}, and the GPUs of "
                f"`{to.name}` are {text}"
            )
    if None in to.host.capabilities:
        told.append(f"architectures: what GPUs `{to.name}` has is not known")
    return told


def _place(origin: Origin, to: Destination) -> list[str]:
    told = []
    if origin.environments != to.environments:
        told.append(
            f"path: environments are in {origin.environments} on `{origin.name}` and in "
            f"{to.environments} on `{to.name}`, and one cannot move"
        )
    if to.engine is not None and origin.engine != to.engine:
        told.append(
            f"engine: `{origin.name}` has another one than this ddtreectl deploys; deploy there "
            "first, or provision a wheelhouse"
        )
    return told
