"""Which CUDA build of torch a host gets: a table, and one function over it.

A build fits a host where the driver is new enough for it *and* it holds machine code for each GPU.
Neither follows from the other: driver 580 serves CUDA 13, whose builds have nothing for a V100; and
a build for CUDA 12.6 runs on any driver of an RTX PRO 6000, and has no kernel for it.

Sources:

- `minimum`, the oldest driver of the CUDA family: "CUDA minor version compatibility",
  docs.nvidia.com/deploy/cuda-compatibility, table 1.
- `native`, the driver that came with that CUDA version: CUDA toolkit release notes, table "CUDA
  toolkit and corresponding driver versions".
- `architectures`: TORCH_CUDA_ARCH_LIST of the wheels in pytorch's `.ci/manywheel/build_cuda.sh`.
- Machine code for X.Y runs on X.Z with Z >= Y: CUDA C++ programming guide, "Binary compatibility".
- The first driver that knows an architecture: release notes of the driver branches.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ddtreectl.errors import RefusedError

Capability = tuple[int, int]
Version = tuple[int, ...]

CPU = "cpu"
AUTO = "auto"


@dataclass(frozen=True)
class CudaBuild:
    """A CUDA build that torch is published for.

    Attributes:
        name: as in the local version of the wheel, `cu128`.
        version: of CUDA.
        minimum: the oldest driver that runs it.
        native: the driver that knows everything it may ask for.
        architectures: compute capabilities that it has machine code for.
    """

    name: str
    version: tuple[int, int]
    minimum: Version
    native: Version
    architectures: tuple[Capability, ...]

    def runs_on(self, capability: Capability) -> bool:
        """Whether it has machine code that a GPU of that compute capability executes."""
        return any(
            major == capability[0] and minor <= capability[1] for major, minor in self.architectures
        )


BUILDS = (
    CudaBuild(
        "cu130",
        (13, 0),
        minimum=(580,),
        native=(580, 65, 6),
        architectures=((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)),
    ),
    CudaBuild(
        "cu128",
        (12, 8),
        minimum=(525, 60, 13),
        native=(570, 26),
        architectures=((7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)),
    ),
    CudaBuild(
        "cu126",
        (12, 6),
        minimum=(525, 60, 13),
        native=(560, 28, 3),
        architectures=((5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)),
    ),
)
"""Newest first."""

FIRST_DRIVER: dict[int, Version] = {10: (570,), 12: (570,)}
"""The first driver branch that knows GPUs of a major compute capability, where it is a new one."""


@dataclass(frozen=True)
class Accelerators:
    """What a choice depends on.

    Attributes:
        needed: whether services of the host use GPUs.
        driver: the version of the driver; None where none is loaded.
        capabilities: of each GPU that services use; None where it is not known.
    """

    needed: bool
    driver: Version | None = None
    capabilities: tuple[Capability | None, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The CUDA build for a host.

    Attributes:
        build: its name, or `cpu`.
        reason: why it is that one.
    """

    build: str
    reason: str


def build_of(name: str) -> CudaBuild | None:
    """The build called `name`; None for `cpu`, and for one that the table does not have."""
    return next((build for build in BUILDS if build.name == name), None)


def choose(
    host: Accelerators, wanted: str = AUTO, available: Collection[str] | None = None
) -> Choice:
    """The CUDA build for a host.

    The newest build that the driver knows in full is taken. Where the driver is older than all of
    them, it is the oldest of those that run by minor-version compatibility: it asks for the least
    that the driver does not have.

    Args:
        host: its driver and GPUs.
        wanted: the name of a build, or `auto`.
        available: the builds that there is a torch for; None where that is not known.

    Raises:
        RefusedError: none fits; the message says of each build why.
    """
    if not host.needed:
        if wanted in {AUTO, CPU}:
            return Choice(CPU, "no service of the host uses a GPU")
        raise RefusedError(
            f"`{wanted}` is for GPUs, and no service of the host uses one",
            hint="name the GPUs of a slot in the inventory, or leave out `--cuda`",
        )
    if wanted == CPU:
        raise RefusedError(
            "services of the host use GPUs, which a build for the CPU cannot",
            hint="leave out `--cuda`, or have the slots say `device: cpu`",
        )
    if host.driver is None:
        raise RefusedError(
            "no NVIDIA driver is loaded, and services of the host use GPUs",
            hint="install a driver and load it (`modprobe nvidia`); without one nothing is built",
        )
    if wanted != AUTO:
        return _only(host, wanted, available)
    if not host.capabilities or None in host.capabilities:
        raise RefusedError(
            "the compute capability of the GPUs is not known, and the choice depends on it",
            hint="see what `nvidia-smi` says on the host, or name a build with `--cuda`",
        )
    speaks_against = {build.name: objections(build, host, available) for build in BUILDS}
    fitting = [build for build in BUILDS if not speaks_against[build.name]]
    if not fitting:
        raise RefusedError(
            "no CUDA build of torch fits the host",
            cause="\n".join(
                f"{name}: {'; '.join(reasons)}" for name, reasons in speaks_against.items()
            ),
            hint=_way_out(host),
        )
    for build in fitting:
        if host.driver >= build.native:
            return Choice(build.name, f"{_facts(host)}: the newest build that both allow")
    oldest = fitting[-1]
    return Choice(
        oldest.name,
        f"{_facts(host)}: runs by minor-version compatibility, for driver "
        f"{_driver(oldest.native)} is what CUDA {_text(oldest.version)} came with",
    )


def objections(
    build: CudaBuild, host: Accelerators, available: Collection[str] | None = None
) -> list[str]:
    """What speaks against a build on a host; empty where nothing does."""
    found = []
    if host.driver is not None and host.driver < build.minimum:
        found.append(
            f"it needs driver {_driver(build.minimum)}, the host has {_driver(host.driver)}"
        )
    known = sorted({entry for entry in host.capabilities if entry is not None})
    for capability in known:
        first = FIRST_DRIVER.get(capability[0])
        if first and host.driver is not None and host.driver < first:
            found.append(
                f"GPUs of compute capability {_text(capability)} need driver {_driver(first)}, "
                f"the host has {_driver(host.driver)}"
            )
        if not build.runs_on(capability):
            found.append(
                f"it has no machine code for compute capability {_text(capability)}, only for "
                f"{', '.join(map(_text, build.architectures))}"
            )
    if available is not None and build.name not in available:
        found.append("the wheelhouse has no torch for it")
    return found


def unsuited(name: str, host: Accelerators) -> list[str]:
    """What speaks against a build that a host has; nothing where it is not known to the table."""
    build = build_of(name)
    return objections(build, host) if build is not None and host.needed else []


def _only(host: Accelerators, wanted: str, available: Collection[str] | None) -> Choice:
    build = build_of(wanted)
    if build is None:
        names = ", ".join(entry.name for entry in BUILDS)
        raise RefusedError(f"`{wanted}` is no CUDA build that is known", hint=f"known: {names}")
    if found := objections(build, host, available):
        raise RefusedError(
            f"`{wanted}` does not fit the host: {found[0]}",
            cause="\n".join(found[1:]),
            hint="without `--cuda` the build is chosen by driver and GPUs",
        )
    return Choice(wanted, f"asked for; {_facts(host)} allow it")


def _way_out(host: Accelerators) -> str:
    """What would have to change for a build to fit."""
    known = [entry for entry in host.capabilities if entry is not None]
    usable = [b for b in BUILDS if all(b.runs_on(capability) for capability in known)]
    if not usable:
        return "no build has machine code for all GPUs: put them on different hosts"
    firsts = [FIRST_DRIVER.get(capability[0], (0,)) for capability in known]
    needs = max([usable[-1].minimum, *firsts])
    if host.driver is not None and host.driver < needs:
        return f"driver {_driver(needs)} or newer would do"
    return f"put a torch for one of {', '.join(b.name for b in usable)} into the wheelhouse"


def _facts(host: Accelerators) -> str:
    known = sorted({entry for entry in host.capabilities if entry is not None})
    gpus = ", ".join(map(_text, known)) or "unknown"
    return f"driver {_driver(host.driver or ())} and compute capability {gpus}"


def _text(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def _driver(version: Sequence[int]) -> str:
    """A version of the driver, whose third part NVIDIA writes with two digits."""
    return ".".join([*map(str, version[:2]), *(f"{part:02d}" for part in version[2:])])
