"""What an environment holds, and the name that follows from it."""

import re
from dataclasses import dataclass
from hashlib import sha256

from ddtreectl.env.backends import Backend
from ddtreectl.env.cuda import CPU
from ddtreectl.env.wheel import Wheel
from ddtreectl.errors import DdtreectlError

_FOLLOWS_TORCH = frozenset({"torch", "triton"})
"""Packages whose version is torch's own business."""


@dataclass(frozen=True)
class EnvironmentLock:
    """Everything that decides what an environment becomes.

    Attributes:
        backend: what it serves.
        torch: the version of torch.
        build: the CUDA build of torch, or `cpu`.
        abi: the interpreter, platform and C library that compiled packages must fit.
        constraints: exact versions of everything else, in pip's format.
        wheel: the engine, for the backend that needs it.
        wheelhouse: the identity of the wheels that it is built from; None where the host's own pip
            configuration says where packages come from.
        requirements: the exact list of packages, where a wheelhouse has one.
    """

    backend: Backend
    torch: str
    build: str
    abi: str
    constraints: str = ""
    wheel: Wheel | None = None
    wheelhouse: str | None = None
    requirements: str | None = None

    @property
    def packages(self) -> list[str]:
        """What is asked for by name, besides torch and the engine's wheel."""
        if self.backend.version is None:
            return []
        return [f"{self.backend.distribution}=={self.backend.version}"]

    @property
    def extras(self) -> str:
        """What the engine's wheel is installed with: its kernels for GPUs, as pip names extras.

        A wheelhouse need not have them, so there it is its `requirements.txt` that asks for them.
        """
        return "[fla]" if self.build != CPU and self.wheelhouse is None else ""

    @property
    def pins(self) -> str:
        """The constraints, with the version of torch that is wanted."""
        wanted = f"torch=={self.torch}"
        lines = _lines(self.constraints)
        if wanted not in lines:
            lines = [wanted, *(line for line in lines if _name(line) not in _FOLLOWS_TORCH)]
        return "".join(f"{line}\n" for line in lines)

    @property
    def name(self) -> str:
        """The name of the environment; equal names hold equal packages."""
        parts = [
            *([self.wheel.name, self.wheel.sha256] if self.wheel else []),
            *self.packages,
            self.pins,
            self.build,
            self.abi,
            *([self.wheelhouse] if self.wheelhouse is not None else []),
        ]
        digest = sha256("\n".join(parts).encode()).hexdigest()[:12]
        return f"{self.backend.name}-{self.build}-{digest}"


def build_in(name: str) -> str:
    """The CUDA build that the name of an environment has; nothing where it has none."""
    return name.partition("-")[2].rpartition("-")[0]


def pinned(package: str, constraints: str) -> str:
    """The version that `constraints` pins a package to.

    Raises:
        DdtreectlError: none.
    """
    for line in _lines(constraints):
        name, _, version = line.partition("==")
        if name.lower() == package and version:
            return version
    raise DdtreectlError(f"the constraints pin no {package}", hint="install ddtreectl again")


def _lines(text: str) -> list[str]:
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]


def _name(line: str) -> str:
    return re.split(r"[=<>!~ \[;]", line, maxsplit=1)[0].lower()
