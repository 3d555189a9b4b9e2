"""The GPUs of a host: what is known of them. A field that the driver does not tell is None."""

from dataclasses import dataclass, field
from typing import Literal

Fault = Literal["lost", "requires-reset", "unknown-error", "no-handle", "hung"]
"""What a GPU answers instead of values; `hung`: it does not answer."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; a field that the driver does not tell is None.

    Attributes:
        index: its place in PCI order, which moves when another GPU is lost.
        uuid: names this very card.
        minor: the N of its /dev/nvidiaN.
        pci: domain:bus:device, as in `0000:3b:00`.
        fault: what it answers instead of values, if it does.
        uncorrected_ecc: memory errors since the driver was loaded that were not corrected.
        remap_pending: whether rows of its memory are replaced at the next reset.
        remap_failed: whether rows could not be replaced.
        recovery: what the driver itself wants done, in its words; `None` is one of them.
        inforom_corrupt: whether its infoROM is damaged.
    """

    index: int
    uuid: str | None
    name: str | None
    compute_capability: tuple[int, int] | None
    memory_total_mib: int | None
    memory_used_mib: int | None
    minor: int | None = None
    pci: str | None = None
    fault: Fault | None = None
    uncorrected_ecc: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: str | None = None
    inforom_corrupt: bool | None = None

    def __str__(self) -> str:
        """How messages name it."""
        return f"GPU {self.index} ({self.uuid or 'UUID unknown'})"


@dataclass(frozen=True)
class Node:
    """A GPU that the kernel's driver lists in /proc/driver/nvidia/gpus, whether it answers or not.

    Attributes:
        pci: domain:bus:device.
        uuid: names the card, where the driver has read that.
        minor: the N of its /dev/nvidiaN.
    """

    pci: str
    uuid: str | None = None
    minor: int | None = None


@dataclass(frozen=True)
class ComputeProcess:
    """A process that holds memory on a GPU."""

    gpu_uuid: str
    pid: int
    memory_mib: int | None


@dataclass(frozen=True)
class Gpus:
    """What the driver says.

    Attributes:
        state: `absent` (no nvidia-smi), `ok` (it tells about some GPU), `failed` (it says why) or
            `hung` (no answer).
        driver: version of the loaded kernel module.
        gpus: those that are enumerated, by index; one that does not answer has a `fault`.
        processes: who holds memory.
        unlisted: those that the kernel's driver has and nvidia-smi does not list.
        code: exit code of the query; None where it did not end.
        said: the tool's own words where it failed.
    """

    state: Literal["absent", "ok", "failed", "hung"]
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[ComputeProcess, ...] = ()
    unlisted: tuple[Node, ...] = ()
    code: int | None = None
    said: str = field(default="", compare=False)

    def at(self, index: int) -> Gpu | None:
        """The GPU that has an index now."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def called(self, uuid: str) -> Gpu | None:
        """The GPU that has a UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


def unknown(index: int) -> Gpu:
    """A GPU of which only the index is known."""
    return Gpu(index, None, None, None, None, None)
