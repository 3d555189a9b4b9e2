"""The processes of a host: owner, start, unit, and the generation that a process belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtreectl.facts.output import Output, as_float, as_int

MARK = "DDTREE_GENERATION"
"""The variable in the environment of a service that names the folder of its generation."""

COLUMNS = 9
"""Of the line of a process: as in `Process`."""


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        pid: its id.
        ppid: its parent's.
        state: as in ps: R, S, D (stuck in the kernel), Z …
        ticks: start time in clock ticks since boot; with the pid it names one run of a process.
        started: start time, seconds since the epoch.
        user: who it runs as.
        unit: the systemd unit of its cgroup, where there is one.
        generation: the folder of the generation that it was started for, if it is one of ours.
        command: the beginning of its command line.
    """

    pid: int
    ppid: int
    state: str
    ticks: int
    started: float
    user: str
    unit: str | None
    generation: str | None
    command: str

    def __str__(self) -> str:
        """How messages name it."""
        unit = f", unit {self.unit}" if self.unit else ""
        return f"pid {self.pid} (user {self.user}{unit}): {self.command[:80]}"


def parse(output: Output) -> dict[int, Process]:
    """The processes by pid."""
    found = {}
    for line in output.lines:
        cells = line.split("\t")
        if len(cells) != COLUMNS:
            continue
        pid, ppid, ticks = (as_int(cells[place]) for place in (0, 1, 3))
        if pid is None or ppid is None or ticks is None:
            continue
        found[pid] = Process(
            pid=pid,
            ppid=ppid,
            state=cells[2] or "?",
            ticks=ticks,
            started=_time(cells[4]),
            user=cells[5] or "?",
            unit=cells[6] or None,
            generation=cells[7] or None,
            command=cells[8],
        )
    return found


def _time(cell: str) -> float:
    try:
        return as_float(float(cell)) or 0.0
    except ValueError:
        return 0.0


def descendants(processes: Mapping[int, Process], pid: int) -> set[int]:
    """`pid` and all processes below it."""
    found = {pid} if pid in processes else set()
    while True:
        more = {p.pid for p in processes.values() if p.ppid in found and p.pid not in found}
        if not more:
            return found
        found |= more
