"""All facts of a host, from one probe."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddtreectl.facts import (
    disk,
    driver,
    http,
    kernel_log,
    metrics,
    nvidia_smi,
    paths,
    ports,
    processes,
    python,
    record_files,
    systemd,
)
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.disk import Disk
from ddtreectl.facts.driver import Driver
from ddtreectl.facts.gpu import Gpus
from ddtreectl.facts.http import Answer, Request
from ddtreectl.facts.kernel_log import KernelLog
from ddtreectl.facts.moves import Move
from ddtreectl.facts.output import Output
from ddtreectl.facts.ports import Listener
from ddtreectl.facts.probe import Call, Section
from ddtreectl.facts.processes import Process, descendants
from ddtreectl.facts.python import Python
from ddtreectl.facts.records import Records
from ddtreectl.facts.systemd import Unit
from ddtreectl.inventory.layout import Layout, slot_units

HTTP_TIMEOUT = 3.0
ASKED: dict[str, tuple[str, ...] | None] = {
    "/health": None,
    "/ready": None,
    "/server_info": None,
    "/metrics": metrics.NAMES,
}
"""What each service is asked, and which lines of the answer are wanted."""

GPUS_EVERY = 30.0
"""Seconds between two questions to the driver: each holds its locks for a moment."""

LOG_EVERY = 10.0
"""Seconds between two readings of the kernel log."""

STATUS = (
    *("systemd", "units", "unit_files", "kernel_log", "gpus"),
    *("ports", "processes", "records", "answers"),
)
"""The sections that tell what runs and how it does.

The log comes before the GPUs, because what hangs is the driver."""

MAY_HANG = {"driver", "gpus", "kernel_log", "answers"}
"""Sections whose silence is itself a fact: a driver that hangs, a service that does not answer."""


@dataclass(frozen=True)
class Scope:
    """What to ask about.

    Attributes:
        layout: where things lie on the host.
        slots: the slots of the host.
        services: the base URL of each slot.
        folders: model folders that a service is to use.
        python: the interpreter to ask.
        show_systemd: command that shows units where systemd runs, but for their names.
        show_otherwise: command that shows them where it does not, if there is one.
        keys: the file with the API keys of a service, by its base URL.
        key_files: further such files.
        cordons: those that the operator keeps for the host.
        moves: likewise, of services that have left it.
    """

    layout: Layout
    slots: tuple[str, ...]
    services: tuple[str, ...]
    folders: tuple[str, ...]
    python: str
    show_systemd: tuple[str, ...]
    show_otherwise: str | None
    keys: Mapping[str, str] = field(default_factory=dict)
    key_files: tuple[str, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def units(self) -> list[str]:
        """The units of all slots."""
        return [unit for slot in self.slots for unit in slot_units(slot)]


@dataclass(frozen=True)
class HostFacts:
    """What is true of a host at one moment.

    Attributes:
        systemd: whether systemd is its service manager.
        systemd_run: whether `systemd-run` can arm a revert.
        without_systemd: whether units can run here where no systemd does.
        python: the interpreter that environments are made from.
        disk: free space by path.
        driver: the driver of the GPUs, as the kernel knows it.
        gpus: the GPUs.
        kernel_log: what the kernel says of them since boot.
        listeners: who listens on which port.
        processes: by pid.
        units: state of the units by name.
        unit_files: text of the installed unit files by name.
        records: generations, lock, swaps, environments.
        folders: the model folders that are there.
        weights: bytes of the weights in each of them.
        answers: HTTP answers by URL.
        keys: whether a file with API keys is for root's eyes only, by its path.
        missing: sections of the probe that said nothing, or not all in time.
    """

    systemd: bool = False
    systemd_run: bool = False
    without_systemd: bool = False
    python: Python | None = None
    disk: Mapping[str, Disk] = field(default_factory=dict)
    driver: Driver = field(default_factory=Driver)
    gpus: Gpus = field(default_factory=lambda: Gpus("absent"))
    kernel_log: KernelLog = field(default_factory=KernelLog)
    listeners: Sequence[Listener] = ()
    processes: Mapping[int, Process] = field(default_factory=dict)
    units: Mapping[str, Unit] = field(default_factory=dict)
    unit_files: Mapping[str, str] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    folders: frozenset[str] = frozenset()
    weights: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    keys: Mapping[str, bool] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def unit(self, name: str) -> Unit:
        """The state of a unit; one that nobody knows is not there."""
        return self.units.get(name) or Unit(name)

    def running_units(self, slot: str) -> list[Unit]:
        """The units of a slot that run."""
        return [unit for name in slot_units(slot) if (unit := self.unit(name)).running]

    def listener_pids(self, port: int) -> list[int]:
        """Who listens on a port."""
        return [pid for entry in self.listeners if entry.port == port for pid in entry.pids]

    def port_taken(self, port: int) -> bool:
        """Whether anyone listens on a port."""
        return any(entry.port == port for entry in self.listeners)

    def unit_pids(self, unit: Unit) -> set[int]:
        """The processes of a unit: those of its cgroup, and its main process with what is below."""
        found = {p.pid for p in self.processes.values() if p.unit == unit.name}
        if unit.main_pid is not None:
            found |= descendants(self.processes, unit.main_pid)
        return found

    def slot_pids(self, slot_folder: str) -> set[int]:
        """The processes started for any generation of a slot, by the mark that they carry."""
        marked = f"{slot_folder}/generations/"
        return {
            p.pid
            for p in self.processes.values()
            if (p.generation or "").startswith(marked) and p.state != "Z"
        }


def sections(scope: Scope) -> dict[str, Section]:
    """The commands of the probe."""
    layout = scope.layout
    units = [layout.unit(name) for name in scope.units]
    requests = [
        Request(f"{base}{path}", HTTP_TIMEOUT, lines=lines, key_file=scope.keys.get(base))
        for base in scope.services
        for path, lines in ASKED.items()
    ]
    return {
        "systemd": Section(
            "[ -d /run/systemd/system ] && { echo systemd; command -v systemd-run; }; true",
            call=Call("units", "tell_systemd", needs=("commands",)),
        ),
        "units": Section(systemd.command(scope.show_systemd, scope.show_otherwise, units), 15.0),
        "unit_files": Section(
            paths.units_command(units),
            call=Call("units", "tell_unit_files", (units, paths.MARKER), needs=("commands",)),
        ),
        "python": Section(python.command(scope.python)),
        "disk": Section(disk.command([layout.root, layout.environments, layout.unit_dir])),
        "driver": Section(driver.command(), driver.SMI_TIMEOUT + 2.0),
        "kernel_log": Section(
            kernel_log.command(),
            kernel_log.DEADLINE,
            Call("kernel_log", "tell_kernel_log", kernel_log.words(), "driver", ("commands",)),
            LOG_EVERY,
        ),
        "gpus": Section(
            nvidia_smi.command(),
            kernel_log.DEADLINE + nvidia_smi.DEADLINE,
            Call("gpus", "tell_gpus", nvidia_smi.words(), "driver", ("commands",)),
            GPUS_EVERY,
        ),
        "ports": Section(ports.command(), call=Call("ports", "tell_ports", needs=("commands",))),
        "processes": Section("", 10.0, Call("processes", "tell_processes", (processes.MARK,))),
        "records": Section(
            record_files.command(layout),
            call=Call("records", "tell_records", record_files.patterns(layout)),
        ),
        "folders": Section(paths.command(scope.folders)),
        "answers": Section(
            "",
            min(HTTP_TIMEOUT * len(requests), 20.0) + 5.0,
            http.call(requests),
        ),
        "keys": Section(paths.keys_command(sorted({*scope.keys.values(), *scope.key_files}))),
    }


def parse(outputs: Mapping[str, Output], scope: Scope, asked: Iterable[str]) -> HostFacts:
    """The facts, from what each of the `asked` sections said."""
    nothing = Output(1, "")
    cut_off = {name for name, output in outputs.items() if output.timed_out} - MAY_HANG

    def said(name: str) -> Output:
        return outputs.get(name, nothing)

    manager = said("systemd").stdout.split()
    return HostFacts(
        systemd="systemd" in manager,
        systemd_run=len(manager) > 1,
        without_systemd=scope.show_otherwise is not None,
        python=python.parse(said("python")),
        disk=disk.parse(said("disk")),
        driver=driver.parse(said("driver")),
        gpus=nvidia_smi.parse(said("gpus")),
        kernel_log=kernel_log.parse(said("kernel_log")),
        listeners=ports.parse(said("ports")),
        processes=processes.parse(said("processes")),
        units=systemd.parse(said("units")),
        unit_files=paths.parse_units(said("unit_files")),
        records=record_files.parse(said("records"), scope.layout)
        .with_cordons(scope.cordons)
        .with_moves(scope.moves),
        folders=paths.parse(said("folders")),
        weights=paths.parse_weights(said("folders")),
        answers={answer.url: answer for answer in http.parse(said("answers"))},
        keys=paths.parse_keys(said("keys")),
        missing=tuple(name for name in asked if name not in outputs or name in cut_off),
    )
