#!/usr/bin/python3 -IS
"""What hosts of a lab have as nvidia-smi: it tells what a state file says, in the driver's words.

The state is described in `tests/fleet/lab/gpu.py`. Forms, texts and exit codes are those of
nvidia-smi 580 as far as programs depend on them: --query-gpu, --query-compute-apps and
--query-remapped-rows as CSV, -i, -L, -q, --help-query-gpu, --help-query-compute-apps, --version,
and a plain table without arguments.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False  # `typing` alone would take as long to import as the rest to run
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

    Gpu = dict[str, Any]
    Row = dict[str, tuple[object, str]]
    """Value and unit of each field."""

FOLDER = os.environ.get("FAKE_GPU", "/usr/lib/fake-gpu")
STUCK = "/sys/fs/cgroup/freezer/stuck/cgroup.procs"

ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "used_memory": "used_gpu_memory",
}
IDENTITY = {"index", "uuid", "pci.bus_id", "count", "driver_version"}
"""What is known of a GPU even when it does not answer."""

CELLS = {
    "n/a": "[N/A]",
    "unknown-error": "[Unknown Error]",
    "lost": "[GPU is lost]",
    "requires-reset": "[GPU requires reset]",
    "err": "ERR!",
}
LOST = "GPU is lost.  Reboot the system to recover this GPU"
HANDLES = {
    "handle": ("Unknown Error", 255),
    "handle-everywhere": ("Unknown Error", 255),
    "handle-lost": (LOST, 15),
}
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
NO_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that "
    "the NVIDIA Display Driver is properly installed and present in your system.\n"
)
MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126"
)
REFUSALS = {
    "no-driver": (9, NO_DRIVER),
    "no-devices": (6, "No devices were found"),
    "no-library": (12, NO_LIBRARY),
    "mismatch": (18, MISMATCH),
}


def say(code: int, text: str) -> NoReturn:
    """End like the real one, which says everything on stdout."""
    print(text)
    sys.exit(code)


def fail(failure: str) -> None:
    """Behave as `failure`, where it concerns the whole driver."""
    if not failure:
        return
    import signal

    if failure in REFUSALS:
        say(*REFUSALS[failure])
    if failure == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if failure == "garbage":
        sys.stdout.buffer.write(bytes(range(256)) + b"\x00, \xff\xfe, [,]\n\n,,,,,,\n")
        sys.exit(0)
    if failure == "hang-uninterruptible":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        try:
            with open(STUCK, "w") as group:
                group.write(str(os.getpid()))  # a frozen cgroup: state D, and deaf to SIGKILL
        except OSError:
            failure = "hang-stubborn"
        else:
            sys.exit(255)  # the lab has thawed it
    if failure == "hang-stubborn":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
    if failure.startswith("hang"):
        while True:
            time.sleep(3600)


def short(pci: str) -> str:
    """A bus id as error messages have it."""
    return pci[4:] if pci.startswith("0000") and pci.count(":") == 2 else pci


def handle_error(gpu: Gpu) -> NoReturn:
    """What is said of a GPU that cannot be opened, instead of anything else."""
    words, code = HANDLES[gpu["fault"]]
    say(code, f"Unable to determine the device handle for GPU{short(gpu['pci'])}: {words}")


def read(path: str) -> str:
    """The content of a file."""
    with open(path) as file:
        return file.read()


def matches(unit: str, pattern: str) -> bool:
    """Whether a unit is meant by a pattern, where `*` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), unit) is not None


def unit_of(pid: int) -> str | None:
    """The systemd unit that a process belongs to."""
    try:
        groups = read(f"/proc/{pid}/cgroup")
    except OSError:
        return None
    found = re.findall(r"([^/\n]+\.service)", groups)
    return found[-1] if found else None


def processes(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The processes that hold memory: those that are named, and those of the units that are."""
    found = list(state.get("processes", []))
    holders = state.get("holders", [])
    for name in os.listdir("/proc") if holders else ():
        unit = unit_of(int(name)) if name.isdigit() else None
        for holder in holders:
            if unit is not None and matches(unit, holder["unit"]):
                command = read(f"/proc/{name}/cmdline").split("\0")[0]
                found.append({**holder, "pid": int(name), "name": command or "[Insufficient]"})
    return found


def gpu_row(state: dict[str, Any], gpu: Gpu, held: Iterable[dict[str, Any]]) -> Row:
    """The fields of a GPU."""
    used = gpu["memory_used"] + sum(p["mib"] for p in held if p["gpu"] == gpu["uuid"])
    used = min(used, gpu["memory_total"])
    row: Row = {
        "timestamp": (time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
        "driver_version": (state["driver"], ""),
        "count": (len(state["gpus"]), ""),
        "index": (gpu["index"], ""),
        "name": (gpu["name"], ""),
        "serial": ("[N/A]", ""),
        "uuid": (gpu["uuid"], ""),
        "pci.bus_id": (gpu["pci"], ""),
        "compute_cap": (gpu["compute_cap"], ""),
        "memory.total": (gpu["memory_total"], "MiB"),
        "memory.used": (used, "MiB"),
        "memory.free": (gpu["memory_total"] - used, "MiB"),
        "utilization.gpu": (0, "%"),
        "utilization.memory": (0, "%"),
        "temperature.gpu": (34, ""),
        "power.draw": ("31.50", "W"),
        "power.limit": ("600.00", "W"),
        "pstate": ("P8", ""),
        "persistence_mode": ("Enabled", ""),
        "compute_mode": ("Default", ""),
        "mig.mode.current": ("[N/A]", ""),
        "ecc.mode.current": ("Enabled", ""),
        "ecc.errors.corrected.volatile.total": (0, ""),
        "ecc.errors.uncorrected.volatile.total": (0, ""),
        "ecc.errors.uncorrected.aggregate.total": (0, ""),
        "remapped_rows.correctable": (0, ""),
        "remapped_rows.uncorrectable": (0, ""),
        "remapped_rows.pending": ("No", ""),
        "remapped_rows.failure": ("No", ""),
        "gpu_recovery_action": ("None", ""),
    }
    if gpu["fault"] in CELLS:
        for name in row.keys() - IDENTITY - {"timestamp"}:
            row[name] = (CELLS[gpu["fault"]], "")
        if gpu["fault"] == "requires-reset":
            row["memory.used"] = (0, "MiB")  # so it looks like the emptiest of all
    row.update({name: (value, "") for name, value in gpu.get("fields", {}).items()})
    for name in state.get("unknown_fields", []):
        row.pop(name, None)
    return row


def process_row(gpu: Gpu, process: dict[str, Any]) -> Row:
    """The fields of a compute process."""
    memory: tuple[object, str] = (process["mib"], "MiB")
    return {
        "timestamp": (time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
        "name": (gpu["name"], ""),
        "pci.bus_id": (gpu["pci"], ""),
        "serial": ("[N/A]", ""),
        "uuid": (gpu["uuid"], ""),
        "pid": (process["pid"], ""),
        "process_name": (process["name"], ""),
        "used_gpu_memory": (CELLS[gpu["fault"]], "") if gpu["fault"] in CELLS else memory,
    }


def table(names: list[str], rows: list[Row], known: Iterable[str], style: str) -> None:
    """Print rows as CSV."""
    options = style.split(",")
    if "csv" not in options:
        say(2, 'Invalid combination of input arguments. Please run "nvidia-smi -h" for help.')
    for name in names:
        if ALIASES.get(name, name) not in known:
            say(2, f'Field "{name}" is not a valid field to query.\n')
    if "noheader" not in options:
        units = {k: unit for row in rows for k, (_, unit) in row.items() if unit}
        fields = [(name, units.get(ALIASES.get(name, name))) for name in names]
        print(", ".join(f"{name} [{unit}]" if unit else name for name, unit in fields))
    for row in rows:
        cells = [row[ALIASES.get(name, name)] for name in names]
        bare = "nounits" in options
        print(", ".join(f"{v} {unit}" if unit and not bare else str(v) for v, unit in cells))


def report(state: dict[str, Any], rows: list[Row]) -> None:
    """Print the part of -q that names driver and GPUs."""
    print("\n==============NVSMI LOG==============\n")
    for name, value in (
        ("Timestamp", time.strftime("%a %b %e %H:%M:%S %Y")),
        ("Driver Version", state["driver"]),
        ("CUDA Version", state["cuda"]),
    ):
        print(f"{name:<50}: {value}")
    print(f"\n{'Attached GPUs':<50}: {len(state['gpus'])}")
    for row in rows:

        def line(indent: int, name: str, field: str, row: Row = row) -> None:
            value, unit = row.get(field, ("N/A", ""))
            text = str(value).strip("[]") + (f" {unit}" if unit else "")
            print(f"{' ' * indent + name:<50}: {text}")

        print(f"GPU {row['pci.bus_id'][0]}")
        line(4, "Product Name", "name")
        line(4, "Persistence Mode", "persistence_mode")
        line(4, "GPU UUID", "uuid")
        line(4, "GPU Recovery Action", "gpu_recovery_action")
        print("    FB Memory Usage")
        line(8, "Total", "memory.total")
        line(8, "Used", "memory.used")
        line(8, "Free", "memory.free")
        print("    Temperature")
        line(8, "GPU Current Temp", "temperature.gpu")
        print("    Remapped Rows")
        line(8, "Pending", "remapped_rows.pending")
        line(8, "Remapping Failure Occurred", "remapped_rows.failure")


def overview(state: dict[str, Any], rows: list[Row]) -> None:
    """Print the table of a call without arguments."""
    rule = "+" + "-" * 89 + "+"
    versions = f"NVIDIA-SMI {state['driver']:<22} Driver Version: {state['driver']:<14} "
    print(rule, f"| {versions}CUDA Version: {state['cuda']:<8} |", rule, sep="\n")
    for row in rows:
        index, name, pci, used, total = (
            "ERR!" if (value := str(row[field][0])).startswith("[") else value
            for field in ("index", "name", "pci.bus_id", "memory.used", "memory.total")
        )
        print(f"| {index:>3}  {name:<44.44} {pci:>16} {used:>6}MiB / {total:>6}MiB |")
    print(rule)


def selected(gpus: list[Gpu], wanted: str | None) -> list[Gpu]:
    """The GPUs that -i names, by index, UUID or bus id; all without it."""
    if wanted is None:
        return gpus
    chosen = []
    for word in wanted.split(","):
        names = [{str(g["index"]), g["uuid"], g["pci"], short(g["pci"])} for g in gpus]
        match = [gpu for gpu, known in zip(gpus, names, strict=True) if word in known]
        if not match:
            say(6, "No devices were found")
        chosen += match
    return chosen


def options(words: list[str]) -> dict[str, str]:
    """The arguments by name; short forms under their long names."""
    long = {"-i": "--id", "-q": "--query", "-L": "--list-gpus", "-h": "--help", "-d": "--display"}
    found = {}
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        name = long.get(name, name)
        if name in {"--id", "--display", "--format"} and not value:
            value = next(rest, "")
        found[name] = value
    return found


def answer(state: dict[str, Any], asked: dict[str, str]) -> None:
    """Print what is asked for."""
    enumerated = [gpu for gpu in state["gpus"] if gpu["fault"] != "missing"]
    state["gpus"] = [{**gpu, "index": index} for index, gpu in enumerate(enumerated)]
    if not state["gpus"]:
        say(*REFUSALS["no-devices"])
    if "--list-gpus" in asked:  # enumerates without opening
        for gpu in state["gpus"]:
            print(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
        return
    chosen = selected(state["gpus"], asked.get("--id"))
    for gpu in state["gpus"]:
        if gpu["fault"] == "handle-everywhere" or (gpu["fault"] in HANDLES and gpu in chosen):
            handle_error(gpu)
    held = processes(state)
    rows = [gpu_row(state, gpu, held) for gpu in chosen]
    apps = [process_row(g, p) for g in chosen for p in held if p["gpu"] == g["uuid"]]
    style = asked.get("--format", "")
    app_fields = process_row(chosen[0], {"pid": 0, "name": "", "mib": 0}).keys()
    forms: dict[str, tuple[list[Row], Iterable[str]]] = {
        "--query-gpu": (rows, rows[0].keys()),
        "--query-remapped-rows": (rows, rows[0].keys()),
        "--query-compute-apps": (apps, app_fields),
    }
    unknown = asked.keys() - forms.keys() - {"--id", "--format", "--query", "--display"}
    if unknown:
        say(2, f"Invalid combination of input arguments: {min(unknown)}")
    for form, (content, known) in forms.items():
        if form in asked:
            table([w.strip() for w in asked[form].split(",")], content, known, style)
            break
    else:
        show: Callable[[dict[str, Any], list[Row]], None]
        show = report if "--query" in asked else overview
        show(state, rows)
    for gpu in chosen:
        if gpu["fault"] == "inforom":
            say(14, f"WARNING: infoROM is corrupted at gpu {short(gpu['pci'])}")


def main() -> None:
    """Answer as the state file says."""
    state = json.loads(read(f"{FOLDER}/state.json"))
    asked = options(sys.argv[1:])
    sample = {"uuid": "", "pci": "", "fault": "", "name": "", "index": 0, "compute_cap": ""}
    if "--help-query-gpu" in asked or "--help-query-compute-apps" in asked:
        fields = gpu_row(state, {**sample, "memory_total": 0, "memory_used": 0}, ())
        if "--help-query-compute-apps" in asked:
            fields = process_row(sample, {"pid": 0, "name": "", "mib": 0})
        print("List of valid properties to query:\n")
        say(0, "\n".join(f'"{name}"' for name in fields))
    if "--help" in asked:
        say(0, (__doc__ or "").strip())
    fail(state.get("failure", ""))
    if "--version" in asked:
        say(0, f"NVIDIA-SMI version  : {state['driver']}\nCUDA Version        : {state['cuda']}")
    answer(state, asked)


if __name__ == "__main__":
    main()
