"""What nvidia-smi and the files of the driver tell of the GPUs of a host.

`nvidia-smi` may be absent, fail, print `[N/A]`, or hang in the kernel for ever. Each of these is a
value here. The driver's version comes from /sys, which never touches a GPU.

One GPU that cannot be opened makes the whole query fail, so each GPU is asked on its own then. A
call that is stuck in the kernel (state D) ends by no signal; while there is one, no other is made.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddtreectl.facts import pci
from ddtreectl.facts.gpu import ComputeProcess, Fault, Gpu, Gpus, Node, unknown
from ddtreectl.facts.output import TIMED_OUT, Output, as_int

DEADLINE = 15.0
"""Seconds that all of it may take."""

ALONE_DEADLINE = 5
"""Seconds that a GPU gets when it is asked on its own."""

_LEAST = "index,uuid,name,memory.total,memory.used"
_MINIMAL = "index,uuid,name,compute_cap,memory.total,memory.used"
_HEALTH = (
    f"{_MINIMAL},pci.bus_id,ecc.errors.uncorrected.volatile.total,"
    "remapped_rows.pending,remapped_rows.failure"
)
COLUMNS = (f"{_HEALTH},gpu_recovery_action", _HEALTH, _MINIMAL, _LEAST)
"""Fields to ask for; where a driver does not know one of them, the next set is asked."""

DATA_IS_VALID = {0, 14}  # 14: the infoROM is corrupt, and all the rest as usual
OF_THE_DRIVER = "2|6|9|12|13|18"
"""Exit codes of nvidia-smi that are about no single GPU."""


FORM = "--format=csv,noheader,nounits"
APPS = "--query-compute-apps=gpu_uuid,pid,used_memory"
_ASK = f'echo "gpus $fields"; nvidia-smi --query-gpu="$fields" {FORM}; code=$?'


def command() -> str:
    """Print driver version, device nodes, GPUs and compute processes, each under its heading."""
    return (
        "echo driver; cat /sys/module/nvidia/version 2>/dev/null; "
        "echo nodes; cat /proc/driver/nvidia/gpus/*/information 2>/dev/null; "
        "command -v nvidia-smi >/dev/null || { echo absent; exit 0; }; "
        "! pgrep -x -r D -O 30 nvidia-smi >/dev/null 2>&1 || { echo stuck; exit 0; }; "
        f"fields={COLUMNS[0]}; {_ASK}; {further()}"
    )


def words() -> tuple[object, ...]:
    """What `tell_gpus` of `ddtreectl.on_host` is told, which does the same."""
    return list(COLUMNS), FORM, APPS, further()


def further() -> str:
    """What a shell does after the first answer, whose `$fields` and exit `$code` it is told."""
    apps = f"{APPS} {FORM}"
    # What is stuck for ever holds a file open, and not the pipe whose end the probe waits for.
    bounded = f"timeout -s KILL {ALONE_DEADLINE} nvidia-smi"
    alone = (
        '( id=$(printf %s "${g##*/}" | tr a-f A-F); t=$(mktemp) || exit; '
        f'{bounded} -i "$id" --query-gpu="$fields" {FORM} >"$t" 2>&1; code=$?; '
        f'[ $code != 0 ] || {bounded} -i "$id" {apps} >>"$t" 2>&1; '
        'echo "exit $id $code" >>"$t"; cat "$t"; rm -f "$t" ) &'
    )
    return (
        f"for more in {' '.join(COLUMNS[1:])}; do [ $code = 2 ] || break; fields=$more; "
        f'{_ASK}; done; echo "status $code"; case $code in '
        f"0|14) echo processes; nvidia-smi {apps};; "
        f"{OF_THE_DRIVER}) ;; "
        f'*) echo "alone $fields"; '
        f'for g in /proc/driver/nvidia/gpus/*; do [ ! -e "$g" ] || {alone} done; wait;; '
        "esac; true"
    )


def parse(output: Output) -> Gpus:
    """The GPUs; total over whatever the tool prints."""
    said = _Said()
    for line in output.stdout.splitlines():
        said.read(line)
    nodes = _nodes(said.node_lines)
    code = said.code if said.code is not None else output.returncode
    if said.heading == "absent":
        return Gpus("absent", said.driver)
    gpus = _joined(said, nodes)
    listed = {gpu.pci for gpu in gpus}
    processes = tuple(said.processes)
    if said.heading == "stuck" or output.timed_out:
        return Gpus("hung", said.driver, gpus, processes)
    unlisted = tuple(node for node in nodes if node.pci not in listed) if said.told_pci else ()
    if not said.rows or not (code in DATA_IS_VALID or said.alone):
        if gpus and all(gpu.fault == "hung" for gpu in gpus):
            return Gpus("hung", said.driver, gpus, processes, unlisted)
        words = ("\n".join(said.noise).strip() or output.stderr.strip())[-500:]
        return Gpus("failed", said.driver, gpus, processes, unlisted, code, words)
    return Gpus("ok", said.driver, gpus, processes, unlisted, code)


class _Said:
    """What the lines of the output say, read one after the other."""

    def __init__(self) -> None:
        self.heading = ""
        self.columns: Sequence[str] = _MINIMAL.split(",")
        self.driver: str | None = None
        self.node_lines: list[str] = []
        self.rows: dict[int, Gpu] = {}
        self.processes: list[ComputeProcess] = []
        self.faults: dict[str, Fault] = {}
        self.corrupt: set[str] = set()
        self.noise: list[str] = []
        self.code: int | None = None
        self.alone = False
        self.told_pci = False

    def read(self, line: str) -> None:
        """Take a line in."""
        word, _, rest = line.partition(" ")
        if line in {"driver", "nodes", "absent", "stuck", "processes", "gpus"}:
            self.heading = line
        elif word in {"gpus", "alone"} and rest in COLUMNS:
            self.heading, self.columns, self.alone = word, rest.split(","), word == "alone"
            self.told_pci = "pci.bus_id" in self.columns
            self.noise.clear()
        elif word == "status" and (code := as_int(rest)) is not None:
            self.code = code
        elif self.heading == "driver":
            self.driver = line.strip() or None
        elif self.heading == "nodes":
            self.node_lines.append(line)
        elif self.heading in {"gpus", "alone", "processes"}:
            self._answer(line)

    def _answer(self, line: str) -> None:
        cells = [cell.strip() for cell in line.split(",")]
        if (gpu := _gpu(self.columns, cells)) is not None:
            self.rows[gpu.index] = gpu
        elif (process := _process([_known(cell) for cell in cells])) is not None:
            self.processes.append(process)
        elif not self._remark(line):
            self.noise.append(line)

    def _remark(self, line: str) -> bool:
        """Take in what is said of a GPU in a sentence; whether it is a remark that is no error."""
        if match := _HANDLE.search(line):
            if address := pci.normalised(match[1]):
                self.faults[address] = _fault_in(match[2]) or "no-handle"
        elif match := _INFOROM.search(line):
            if address := pci.normalised(match[1]):
                self.corrupt.add(address)
            return True
        elif match := _EXIT.fullmatch(line):
            address = pci.normalised(match[1])
            if address and as_int(match[2]) == TIMED_OUT:
                self.faults[address] = "hung"
            return True
        return False


_HANDLE = re.compile(r"device handle for GPU\s*(?:\d+:\s*)?([0-9A-Fa-f:.]+?):\s+(.*)")
_INFOROM = re.compile(r"infoROM is corrupted at gpu ([0-9A-Fa-f:.]+)", re.IGNORECASE)
_EXIT = re.compile(r"exit ([0-9A-Fa-f:.]+) (\d+)")


def _joined(said: _Said, nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    """The rows, with what other lines tell of a GPU; and GPUs that have no row for a known reason.

    Such a GPU has the index of its place among the nodes: nvidia-smi counts in PCI order as well.
    """
    by_uuid = {node.uuid: node for node in nodes if node.uuid}
    by_pci = {node.pci: node for node in nodes}
    found: dict[int, Gpu] = {}
    for gpu in said.rows.values():
        node = by_pci.get(gpu.pci or "") or by_uuid.get(gpu.uuid or "")
        address = gpu.pci or (node.pci if node else None)
        found[gpu.index] = replace(
            gpu,
            pci=address,
            minor=node.minor if node else None,
            inforom_corrupt=True if address in said.corrupt else None,
        )
    answered = {gpu.pci for gpu in found.values()}
    for index, node in enumerate(sorted(nodes, key=lambda node: node.pci)):
        fault = said.faults.get(node.pci)
        if fault and node.pci not in answered and index not in found:
            found[index] = replace(
                unknown(index), uuid=node.uuid, minor=node.minor, pci=node.pci, fault=fault
            )
    return tuple(gpu for _, gpu in sorted(found.items()))


def _nodes(lines: Iterable[str]) -> tuple[Node, ...]:
    """The files of /proc/driver/nvidia/gpus, which follow each other without a line between."""
    files: list[dict[str, str]] = [{}]
    for line in lines:
        key, _, value = line.partition(":")
        if key in files[-1]:
            files.append({})
        files[-1][key] = value.strip()
    found = []
    for file in files:
        address, uuid = pci.normalised(file.get("Bus Location", "")), file.get("GPU UUID", "")
        if address and file.get("GPU Excluded") != "Yes":  # those are not to be listed
            minor = as_int(file.get("Device Minor", ""))
            found.append(Node(address, uuid if uuid and "?" not in uuid else None, minor))
    return tuple(found)


def _known(cell: str) -> str | None:
    """A cell of the table, or None for `[N/A]`, `[Unknown Error]` and their kin."""
    cell = cell.strip()
    return None if not cell or cell.startswith("[") or cell == "ERR!" else cell


def _fault_in(words: str) -> Fault | None:
    """The fault that a cell or a sentence names."""
    lower = words.lower()
    if "is lost" in lower:
        return "lost"
    if "requires reset" in lower:
        return "requires-reset"
    return None


def _fault(cells: Mapping[str, str]) -> Fault | None:
    """What a row says instead of values.

    A healthy GPU may know nothing of one field or another; one without name and memory is not.
    """
    if named := [fault for cell in cells.values() if (fault := _fault_in(cell))]:
        return named[0]
    broken = {"[unknown error]", "err!"}
    asked = [cells.get(name, "").lower() for name in ("name", "memory.total", "memory.used")]
    return "unknown-error" if broken.intersection(asked) else None


def _gpu(columns: Sequence[str], row: Sequence[str]) -> Gpu | None:
    if len(row) != len(columns) or (index := as_int(row[0])) is None or index < 0:
        return None
    cells = dict(zip(columns, row, strict=True))
    known = {name: _known(cell) for name, cell in cells.items()}
    major, _, minor = (known.get("compute_cap") or "").partition(".")
    capability = None
    if major.isascii() and major.isdecimal() and minor.isascii() and minor.isdecimal():
        capability = (int(major[:4]), int(minor[:4]))
    fault = _fault(cells)
    return Gpu(
        index=index,
        uuid=known["uuid"],
        name=known["name"],
        compute_capability=capability,
        memory_total_mib=as_int(known["memory.total"]),
        # A card that wants a reset says 0, and would look like the emptiest of all.
        memory_used_mib=None if fault else as_int(known["memory.used"]),
        pci=pci.normalised(known.get("pci.bus_id") or ""),
        fault=fault,
        uncorrected_ecc=as_int(known.get("ecc.errors.uncorrected.volatile.total")),
        remap_pending=_yes(known.get("remapped_rows.pending")),
        remap_failed=_yes(known.get("remapped_rows.failure")),
        recovery=known.get("gpu_recovery_action"),
    )


def _yes(cell: str | None) -> bool | None:
    return {"yes": True, "no": False, "1": True, "0": False}.get((cell or "").lower())


def _process(row: Sequence[str | None]) -> ComputeProcess | None:
    if len(row) != 3 or row[0] is None or (pid := as_int(row[1])) is None:
        return None
    return ComputeProcess(row[0], pid, as_int(row[2]))
