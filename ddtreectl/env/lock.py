"""What an environment holds, and the name that follows from it."""

from dataclasses import dataclass
from hashlib import sha256

from ddtreectl.env.wheel import Wheel
from ddtreectl.facts.python import Python


@dataclass(frozen=True)
class EnvironmentLock:
    """Everything that decides what an environment becomes.

    Attributes:
        wheel: the engine.
        constraints: exact versions of everything else, in pip's format.
        abi: the interpreter, platform and C library that compiled packages must fit.
    """

    wheel: Wheel
    constraints: str
    abi: str

    @classmethod
    def for_python(cls, python: Python, wheel: Wheel, constraints: str) -> "EnvironmentLock":
        """The lock of an environment made from `python`."""
        return cls(wheel, constraints, f"{python.abi} {'.'.join(map(str, python.version))}")

    @property
    def name(self) -> str:
        """The name of the environment; equal names hold equal packages."""
        pins = "\n".join(
            line
            for line in (raw.partition("#")[0].strip() for raw in self.constraints.splitlines())
            if line
        )
        text = "\n".join([self.wheel.name, self.wheel.sha256, pins, self.abi])
        return f"engine-{sha256(text.encode()).hexdigest()[:12]}"
