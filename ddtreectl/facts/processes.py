"""The processes of a host: owner, start, unit, and the generation that a process belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtreectl.facts.output import Output, as_float, as_int, json_objects

MARK = "DDTREE_GENERATION"
"""The variable in the environment of a service that names the folder of its generation."""

SCRIPT = f"""
import json, os, pwd
hertz = os.sysconf("SC_CLK_TCK")
boot = next(int(l.split()[1]) for l in open("/proc/stat") if l.startswith("btime"))
for path in ["/proc/" + name for name in os.listdir("/proc") if name.isdigit()]:
    try:
        argv = open(path + "/cmdline", "rb").read()
        if not argv:
            continue
        stat = open(path + "/stat").read().rpartition(")")[2].split()
        uid = os.stat(path).st_uid
        cgroup = open(path + "/cgroup").read().splitlines()
    except (OSError, ValueError):
        continue
    try:
        environ = open(path + "/environ", "rb").read().split(b"\\0")
    except OSError:
        environ = []
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    mark = [v[len("{MARK}="):] for v in environ if v.startswith(b"{MARK}=")]
    units = [p for l in cgroup for p in l.split("/") if p.endswith((".service", ".scope"))]
    print(json.dumps({{
        "pid": int(path[6:]), "ppid": int(stat[1]), "state": stat[0], "ticks": int(stat[19]),
        "started": boot + int(stat[19]) / hertz, "user": user,
        "unit": units[-1] if units else None,
        "generation": mark[0].decode(errors="replace") if mark else None,
        "command": argv.replace(b"\\0", b" ").decode(errors="replace").strip()[:400],
    }}))
"""
"""Python text that prints one JSON object for each user process."""


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
    for entry in json_objects(output.stdout):
        pid, ppid, ticks = (as_int(entry.get(key)) for key in ("pid", "ppid", "ticks"))
        if pid is None or ppid is None or ticks is None:
            continue
        found[pid] = Process(
            pid=pid,
            ppid=ppid,
            state=str(entry.get("state") or "?"),
            ticks=ticks,
            started=as_float(entry.get("started")) or 0.0,
            user=str(entry.get("user") or "?"),
            unit=_text(entry, "unit"),
            generation=_text(entry, "generation"),
            command=str(entry.get("command") or ""),
        )
    return found


def _text(entry: Mapping[str, object], key: str) -> str | None:
    value = entry.get(key)
    return value if isinstance(value, str) and value else None


def descendants(processes: Mapping[int, Process], pid: int) -> set[int]:
    """`pid` and all processes below it."""
    found = {pid} if pid in processes else set()
    while True:
        more = {p.pid for p in processes.values() if p.ppid in found and p.pid not in found}
        if not more:
            return found
        found |= more
