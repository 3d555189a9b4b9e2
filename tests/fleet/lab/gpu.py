"""The GPUs that a host believes to have: their state, and where the lab writes it.

`nvidia-smi` on a host (`guest/nvidia_smi.py`) reads the state anew at each call. The files of the
driver in /proc/driver/nvidia and /sys/module/nvidia, which touch no GPU, follow it.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args
from uuid import NAMESPACE_DNS, uuid5

GpuFault = Literal[
    "",
    "n/a",  # each value reads [N/A]
    "unknown-error",  # [Unknown Error]
    "lost",  # [GPU is lost]
    "requires-reset",  # [GPU requires reset], and 0 MiB used
    "err",  # ERR!
    "inforom",  # all is well, with a warning and exit code 14
    "missing",  # not enumerated; the GPUs after it move up by one index
    "handle",  # cannot be opened: every query that includes it fails as a whole
    "handle-lost",  # likewise, in the words for a GPU off the bus, with exit code 15
    "handle-everywhere",  # likewise, and queries of other GPUs by -i fail too
]

Failure = Literal[
    "",
    "no-driver",
    "no-devices",
    "no-library",
    "mismatch",  # of driver and library, as after an upgrade without a reboot
    "garbage",
    "crash",
    "hang",
    "hang-stubborn",  # ignores every signal but SIGKILL
    # State D, deaf to SIGKILL, as in a stuck kernel call; where the freezer is of cgroup version 2,
    # which cannot do that, as `hang-stubborn`.
    "hang-uninterruptible",
]


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        uuid: as drivers form it, `GPU-…`.
        pci: bus id with an eight-digit domain.
        name: product name.
        compute_cap: compute capability, as in `12.0`.
        memory_total: MiB.
        memory_used: MiB held without any process.
        fault: what is wrong with it.
        fields: further fields of --query-gpu by name, or other values for those there are.
    """

    uuid: str
    pci: str
    name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    compute_cap: str = "12.0"
    memory_total: int = 97887
    memory_used: int = 4
    fault: GpuFault = ""
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a GPU, whether it exists or not."""

    gpu: str
    pid: int
    mib: int
    name: str


@dataclass(frozen=True)
class Holder:
    """Each process of a systemd unit holds memory of a GPU for as long as it lives.

    Attributes:
        gpu: UUID.
        unit: name of the unit, where `*` stands for anything.
        mib: memory of each process.
    """

    gpu: str
    unit: str
    mib: int


@dataclass(frozen=True)
class GpuState:
    """What the driver of a host says.

    Attributes:
        gpus: in the order of their bus ids.
        driver: version of the kernel module.
        cuda: the newest CUDA version that the driver serves.
        failure: what is wrong with the driver as a whole.
        processes: who holds memory.
        holders: units whose processes do.
        unknown_fields: fields of --query-gpu that this driver does not know.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = "580.95.05"
    cuda: str = "13.0"
    failure: Failure = ""
    processes: tuple[Process, ...] = ()
    holders: tuple[Holder, ...] = ()
    unknown_fields: tuple[str, ...] = ()

    @classmethod
    def healthy(cls, host: str, count: int) -> Self:
        """The GPUs of a host, with the same UUIDs whenever they are asked for."""
        return cls(
            tuple(
                Gpu(
                    uuid=f"GPU-{uuid5(NAMESPACE_DNS, f'{host}.{index}')}",
                    pci=f"00000000:{0x0B + 16 * index:02X}:00.0",
                )
                for index in range(count)
            )
        )

    def with_gpu(self, index: int, **changes: Any) -> Self:
        """The same with one GPU changed."""
        gpus = list(self.gpus)
        gpus[index] = replace(gpus[index], **changes)
        return replace(self, gpus=tuple(gpus))

    def to_json(self) -> dict[str, Any]:
        """The state as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`.

        Raises:
            ValueError: it names a fault that no GPU can have here.
            TypeError: it lacks a field, or has one too many.
        """

        def items(name: str) -> Sequence[Mapping[str, Any]]:
            found: Sequence[Mapping[str, Any]] = content.get(name, ())
            return found

        state = cls(
            **{
                **content,
                "gpus": tuple(Gpu(**gpu) for gpu in items("gpus")),
                "processes": tuple(Process(**process) for process in items("processes")),
                "holders": tuple(Holder(**holder) for holder in items("holders")),
                "unknown_fields": tuple(content.get("unknown_fields", ())),
            }
        )
        faults = {gpu.fault for gpu in state.gpus} - set(get_args(GpuFault))
        if wrong := faults | ({state.failure} - set(get_args(Failure))):
            raise ValueError(f"no such fault: {', '.join(sorted(wrong))}")
        return state


def write(folder: Path, state: GpuState) -> None:
    """Write what a host sees: folders `driver` and `module`, and the state file."""
    driver, module = folder / "driver", folder / "module"
    for parent in (driver, module):
        parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(parent / "nvidia", ignore_errors=True)
    if state.gpus and state.failure != "no-driver":
        (module / "nvidia").mkdir()
        (module / "nvidia/version").write_text(f"{state.driver}\n")
        (driver / "nvidia/gpus").mkdir(parents=True)
        (driver / "nvidia/version").write_text(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
            f"{state.driver}  Release Build\n"
        )
        for minor, gpu in enumerate(state.gpus):
            if gpu.fault != "missing":
                _write_information(driver / "nvidia/gpus", gpu, minor)
    fresh = folder / "state.json.new"
    fresh.write_text(json.dumps(state.to_json(), indent=1))
    fresh.replace(folder / "state.json")


def _write_information(folder: Path, gpu: Gpu, minor: int) -> None:
    name = gpu.pci[4:].lower()
    (folder / name).mkdir()
    (folder / name / "information").write_text(
        f"Model: \t\t {gpu.name}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        f"Bus Location: \t {name}\n"
        f"Device Minor: \t {minor}\n"
    )
