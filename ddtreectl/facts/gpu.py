"""The GPUs of a host, as far as the driver tells.

`nvidia-smi` may be absent, fail, print `[N/A]`, or hang in the kernel for ever. Each of these is a
value here. The driver's version comes from /sys, which never touches a GPU.
"""

import csv
from dataclasses import dataclass, field
from typing import Literal

from ddtreectl.facts.output import Output, as_int

_COLUMNS = "index,uuid,name,compute_cap,memory.total,memory.used"


@dataclass(frozen=True)
class Gpu:
    """One GPU; a field that the driver does not tell is None."""

    index: int
    uuid: str | None
    name: str | None
    compute_capability: tuple[int, int] | None
    memory_total_mib: int | None
    memory_used_mib: int | None


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
        state: `absent` (no nvidia-smi), `ok`, `failed` (it says why) or `hung` (no answer).
        driver: version of the loaded kernel module.
        said: the tool's own words where it failed.
    """

    state: Literal["absent", "ok", "failed", "hung"]
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[ComputeProcess, ...] = ()
    said: str = field(default="", compare=False)


def command() -> str:
    """Print driver version, GPUs and compute processes, each under its heading."""
    query = "nvidia-smi --format=csv,noheader,nounits"
    return (
        "echo driver; cat /sys/module/nvidia/version 2>/dev/null; "
        "command -v nvidia-smi >/dev/null || { echo absent; exit 0; }; "
        f"echo gpus; {query} --query-gpu={_COLUMNS} || exit; "
        f"echo processes; {query} --query-compute-apps=gpu_uuid,pid,used_memory"
    )


def parse(output: Output) -> Gpus:
    """The GPUs; total over whatever the tool prints."""
    heading = ""
    driver = None
    gpus: list[Gpu] = []
    processes: list[ComputeProcess] = []
    for line in output.stdout.splitlines():
        if line in {"driver", "absent", "gpus", "processes"}:
            heading = line
        elif heading == "driver":
            driver = line.strip() or None
        else:
            row = [_known(cell) for cell in next(csv.reader([line]), [])]
            if heading == "gpus" and (gpu := _gpu(row)):
                gpus.append(gpu)
            elif heading == "processes" and (process := _process(row)):
                processes.append(process)
    if heading == "absent":
        return Gpus("absent", driver)
    if output.timed_out:
        return Gpus("hung", driver, tuple(gpus))
    if output.returncode != 0 or not gpus:
        said = (output.stderr.strip() or output.stdout.strip())[-500:]
        return Gpus("failed", driver, tuple(gpus), tuple(processes), said)
    return Gpus("ok", driver, tuple(gpus), tuple(processes))


def _known(cell: str) -> str | None:
    """A cell of the table, or None for `[N/A]`, `[Unknown Error]` and their kin."""
    cell = cell.strip()
    return None if not cell or cell.startswith("[") or cell == "ERR!" else cell


def _gpu(row: list[str | None]) -> Gpu | None:
    if len(row) != 6 or (index := as_int(row[0])) is None:
        return None
    major, _, minor = (row[3] or "").partition(".")
    capability = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    return Gpu(index, row[1], row[2], capability, as_int(row[4]), as_int(row[5]))


def _process(row: list[str | None]) -> ComputeProcess | None:
    if len(row) != 3 or row[0] is None or (pid := as_int(row[1])) is None:
        return None
    return ComputeProcess(row[0], pid, as_int(row[2]))
