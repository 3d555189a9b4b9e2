"""What is ready on a host and what is not: every check that needs no more than its facts. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ddtreectl.facts.host import HostFacts
from ddtreectl.gpu.classify import classify
from ddtreectl.gpu.verdict import Verdict
from ddtreectl.inventory.layout import Layout
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.select import Place
from ddtreectl.plan.moves import move_remarks
from ddtreectl.plan.refusals import (
    ENVIRONMENT_BYTES,
    ENVIRONMENT_INODES,
    MIN_INODES,
    RECORD_BYTES,
)
from ddtreectl.plan.status import drift_of
from ddtreectl.plan.wish import installed_generation, serving

State = Literal["ok", "warning", "failed"]
GIB = 1 << 30


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        area: what it is about.
        state: `failed` keeps services from running or being deployed; `warning` does not yet.
        what: what was found.
        cause: why, as far as it is known.
        hint: what to do.
    """

    area: str
    state: State
    what: str
    cause: str = ""
    hint: str = ""


def checks(name: str, entry: HostEntry, facts: HostFacts) -> list[Check]:
    """The outcome of every check on facts.

    Args:
        name: the host.
        entry: its entry in the inventory.
        facts: what is true of it.
    """
    return [
        *_probe(facts),
        *_service_manager(facts),
        *_disk(entry, facts),
        *_driver(entry, facts),
        *_gpus(name, entry, facts),
        *_cordons(name, facts),
        *_units(name, entry, facts),
        *_work_in_progress(name, facts),
    ]


def _probe(facts: HostFacts) -> Iterator[Check]:
    for section in facts.missing:
        yield Check(
            "probe",
            "failed",
            f"the host does not tell about {section}",
            hint="it may be overloaded, or its temporary folder full",
        )


def _service_manager(facts: HostFacts) -> Iterator[Check]:
    if facts.systemd and facts.systemd_run:
        yield Check("systemd", "ok", "runs units, and can revert a swap by itself")
    elif facts.systemd:
        yield Check(
            "systemd",
            "warning",
            "`systemd-run` is not installed: no dead-man revert can be armed",
            hint="install systemd's tools on the host",
        )
    elif facts.without_systemd:
        yield Check(
            "systemd",
            "warning",
            "no systemd runs here; units run through docker-systemctl-replacement",
            cause="nothing restarts a service that ends, and no dead-man revert can be armed",
        )
    else:
        yield Check(
            "systemd",
            "failed",
            "no systemd runs on the host",
            hint="services need a systemd as PID 1",
        )


def _disk(entry: HostEntry, facts: HostFacts) -> Iterator[Check]:
    layout = Layout.of(entry)
    device = "gpu" if any(slot.gpus for slot in entry.slots.values()) else "cpu"
    for path in dict.fromkeys([layout.root, layout.environments, layout.unit_dir]):
        disk = facts.disk.get(path)
        if disk is None:
            yield Check("disk", "failed", f"what is free at {path} is not known")
            continue
        free = f"{disk.free_bytes / GIB:.1f} GiB"
        inodes = "" if disk.free_inodes is None else f" and {disk.free_inodes} inodes"
        few = disk.free_inodes is not None and disk.free_inodes < MIN_INODES
        if disk.free_bytes < RECORD_BYTES or few:
            yield Check(
                "disk",
                "failed",
                f"{path} has {free}{inodes} free",
                cause=f"ddtreectl needs {RECORD_BYTES >> 20} MiB and {MIN_INODES} inodes",
                hint=f"make room there: `df -h {path}` and `df -i {path}`",
            )
            continue
        tight = disk.free_bytes < ENVIRONMENT_BYTES[device] or (
            disk.free_inodes is not None and disk.free_inodes < ENVIRONMENT_INODES
        )
        if path == layout.environments and tight:
            yield Check(
                "disk",
                "warning",
                f"{path} has {free}{inodes} free",
                cause="a further environment may take "
                f"{ENVIRONMENT_BYTES[device] / GIB:.0f} GiB and {ENVIRONMENT_INODES} inodes",
                hint="`ddtreectl prune` removes those that nothing uses",
            )
        else:
            yield Check("disk", "ok", f"{path} has {free}{inodes} free")


def _driver(entry: HostEntry, facts: HostFacts) -> Iterator[Check]:
    """What is there of a driver. That its two parts differ is a finding on the host's GPUs."""
    driver = facts.driver
    if not any(slot.gpus for slot in entry.slots.values()):
        return
    if driver.version is None:
        yield Check(
            "driver",
            "failed",
            "no NVIDIA driver is loaded, and services of the host use GPUs",
            hint="install a driver and load it: `modprobe nvidia`",
        )
    elif not driver.uvm:
        yield Check(
            "driver",
            "warning",
            "/dev/nvidia-uvm is not there, and CUDA needs it",
            cause="a service may use the devices that are there when it starts, and make none",
            hint="a service has it made before it starts where `/usr/bin/nvidia-modprobe` is "
            "installed; `nvidia-modprobe -c=0 -u` on the host makes it at once",
        )
    else:
        yield Check("driver", "ok", f"the kernel runs driver {driver.version}")


def _gpus(name: str, entry: HostEntry, facts: HostFacts) -> Iterator[Check]:
    """Faults of GPUs by the table of `ddtreectl.gpu`, and whether each slot has those it names."""
    wanted = sorted({index for slot in entry.slots.values() for index in slot.gpus})
    if not wanted:
        return
    health = classify(name, entry, facts, facts.records.settled)
    told = [(f"GPU {gpu.index}", finding) for gpu in health.gpus for finding in gpu.findings]
    told += [("the host", finding) for finding in health.findings]
    for subject, finding in told:
        if finding.verdict is Verdict.OK:
            continue
        yield Check(
            "gpu",
            "failed" if finding.verdict.takes_no_service else "warning",
            finding.reason if subject in finding.reason else f"{subject}: {finding.reason}",
            cause=f"verdict: {finding.verdict}",
            hint=finding.hint,
        )
    for index in wanted:
        gpu = facts.gpus.at(index)
        if gpu is None:
            yield Check(
                "gpu",
                "failed",
                f"GPU {index} is not there; the host tells of {len(facts.gpus.gpus)}",
                cause=facts.gpus.said,
                hint="what does `nvidia-smi` say on the host?",
            )
        elif gpu.fault is None:
            capability = ".".join(map(str, gpu.compute_capability or ())) or "unknown"
            yield Check("gpu", "ok", f"{gpu}, {gpu.name}, compute capability {capability}")


def _cordons(name: str, facts: HostFacts) -> Iterator[Check]:
    for cordon in facts.records.cordons:
        target = name if cordon.gpu is None else f"{name}:{cordon.gpu}"
        yield Check(
            "cordon",
            "warning",
            str(cordon),
            cause="a deploy or rollback there is refused",
            hint=f"`ddtreectl uncordon {target}` ends that",
        )


def _units(host: str, entry: HostEntry, facts: HostFacts) -> Iterator[Check]:
    layout = Layout.of(entry)
    drifted = dict(_drifted(host, entry, facts))
    for name, text in sorted(facts.unit_files.items()):
        found = list(_unit(name, layout.unit(name), text, facts))
        yield from found
        if not found and name in drifted:
            yield Check(
                "unit",
                "failed",
                f"{name}: {drifted[name]}",
                hint="`ddtreectl deploy` with `--force` installs it anew",
            )
        elif not found:
            yield Check("unit", "ok", f"{name}: {facts.unit(name)}")


def _drifted(host: str, entry: HostEntry, facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Units that differ from the generation that serves, with how."""
    for slot_name, slot in entry.slots.items():
        generation = serving(Place(host, entry, slot_name, slot), facts)
        if generation is not None:
            text = drift_of(generation, facts, facts.unit(generation.unit))
            if text:
                yield generation.unit, text


def _unit(name: str, path: str, text: str, facts: HostFacts) -> Iterator[Check]:
    unit = facts.unit(name)
    if installed_generation(text) is None:
        yield Check(
            "unit",
            "failed",
            f"{path} was not written by ddtreectl",
            hint="move it away; a deploy refuses to overwrite it",
        )
        return
    for drop_in in unit.drop_ins:
        yield Check(
            "unit",
            "failed",
            f"{drop_in} changes {name} behind ddtreectl's back",
            hint="move it away; what it is for may belong into the inventory",
        )
    if unit.fragment is not None and unit.fragment != path:
        yield Check(
            "unit",
            "failed",
            f"systemd loads {unit.fragment}, and not {path}",
            hint="move the other file away, then `systemctl daemon-reload`",
        )
    if unit.needs_reload:
        yield Check(
            "unit",
            "warning",
            f"{name} has changed on the disk since systemd read it",
            hint="`systemctl daemon-reload` on the host",
        )
    if unit.active == "failed":
        yield Check(
            "unit",
            "failed",
            f"{name}: {unit}",
            hint="`ddtreectl logs` shows its journal, `ddtreectl rollback` the way back",
        )


def _work_in_progress(name: str, facts: HostFacts) -> Iterator[Check]:
    records = facts.records
    if records.lock is not None:
        yield Check(
            "lock",
            "warning",
            f"locked by {records.lock}",
            hint="a lock whose owner is gone is taken over by the next command",
        )
    for remark in move_remarks(name, facts, locked=records.lock is not None):
        state: State = "failed" if remark.text.startswith("split") else "warning"
        yield Check("move", state, f"{remark.slot}: {remark.text}", hint=remark.hint)
    for swap in records.swaps:
        way = f"ddtreectl rollback {name} --slot {swap.slot}"
        yield Check(
            "swap",
            "warning",
            f"the swap of {swap.slot} to generation {swap.to} by {swap.owner} has not ended",
            hint=f"unless it goes on now, `{way}` settles it",
        )
