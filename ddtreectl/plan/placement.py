"""What speaks against each slot that might take a service, and which of the others is better.

Pure: the caller finds out about hosts and environments, here it is judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import BUNDLED, ServiceSpec
from ddtreectl.plan.refusals import own_pids
from ddtreectl.plan.wish import last_good, serving

MIB = 1 << 20
BUNDLED_MIB = 1024
"""What the demo model is taken to need: its kernels and the CUDA context, above all."""

OVERHEAD_MIB, SHARE = 2048, 1.2
"""A model needs its weights, and a fifth more and this for caches and the CUDA context."""


@dataclass(frozen=True)
class Asked:
    """What needs a place.

    Attributes:
        source: the slot that it leaves.
        service: what it is.
        memory_mib: of each GPU that it needs; None where that is not known.
        replicas: hosts that serve the same model already.
        leave_host: whether another GPU of the same host will not do.
    """

    source: Place
    service: ServiceSpec
    memory_mib: int | None = None
    replicas: frozenset[str] = frozenset()
    leave_host: bool = False


@dataclass(frozen=True)
class Prospect:
    """A slot that might take it.

    Attributes:
        place: the slot.
        facts: of its host; None where that cannot be reached.
        unreachable: why it cannot.
        refusals: what a deploy of the service to it would be refused for.
        misfit: why no environment of the host serves its GPUs; empty where one does.
        environment: the name of the environment that it would run from.
        missing: folders of the model that the host does not have and nobody can copy there.
        copied: folders of the model that would be copied there, in bytes.
        objection: why its host can make no environment of its own; empty where it can.
        taken_from: the host whose environment it would take over then.
    """

    place: Place
    facts: HostFacts | None
    unreachable: str = ""
    refusals: tuple[str, ...] = ()
    misfit: str = ""
    environment: str = ""
    missing: tuple[str, ...] = ()
    copied: tuple[tuple[str, int], ...] = ()
    objection: str = ""
    taken_from: str = ""

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"{self.place.host_name}/{self.place.slot_name}"

    @property
    def provisioned(self) -> bool:
        """Whether its environment is finished on the host."""
        return self.facts is not None and self.environment in self.facts.records.environments


@dataclass(frozen=True)
class Judged:
    """A prospect with the judgement on it.

    Attributes:
        prospect: the slot.
        rejections: what speaks against it; empty for one that will do.
        remarks: what it is, for a reader.
    """

    prospect: Prospect
    rejections: tuple[str, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placement:
    """The choice.

    Attributes:
        chosen: the best of those that will do, or None.
        judged: every prospect, the chosen one first.
    """

    chosen: Prospect | None
    judged: tuple[Judged, ...]


def judged(asked: Asked, prospect: Prospect) -> Judged:
    """The judgement on one prospect."""
    return Judged(prospect, tuple(rejections(asked, prospect)), tuple(_remarks(asked, prospect)))


def memory_by_weights(service: ServiceSpec, facts: HostFacts | None) -> int | None:
    """MiB of each GPU that the weights of a service make likely.

    Args:
        service: what it is.
        facts: of a host that has the weights; None where none does.
    """
    if BUNDLED in {service.model, service.drafter}:
        return BUNDLED_MIB
    folders = (service.model, service.drafter)
    if facts is None or any(not facts.weights.get(folder) for folder in folders):
        return None
    weights = sum(facts.weights[folder] for folder in folders) // MIB
    return int(SHARE * weights / max(service.gpu_count, 1)) + OVERHEAD_MIB


def memory_held(source: Place, facts: HostFacts) -> int | None:
    """MiB that the service of a slot holds of each of its GPUs at the most, by the driver."""
    own = own_pids(source, facts)
    held = []
    for index in source.slot.gpus:
        gpu = facts.gpus.at(index)
        if gpu is None or gpu.uuid is None or gpu.fault:
            return None
        mine = [
            p.memory_mib
            for p in facts.gpus.processes
            if p.gpu_uuid == gpu.uuid and p.pid in own and p.memory_mib is not None
        ]
        held.append(sum(mine))
    return max(held, default=0) or None


def free_mib(prospect: Prospect) -> int | None:
    """Memory that the fullest GPU of a slot has free; None where the driver does not tell."""
    if prospect.facts is None:
        return None
    found = []
    for index in prospect.place.slot.gpus:
        gpu = prospect.facts.gpus.at(index)
        if gpu is None or gpu.memory_total_mib is None or gpu.memory_used_mib is None:
            return None
        found.append(gpu.memory_total_mib - gpu.memory_used_mib)
    return min(found, default=None)


def rejections(asked: Asked, prospect: Prospect) -> Iterator[str]:
    """What speaks against a prospect, the plainest first."""
    source, target, facts = asked.source, prospect.place, prospect.facts
    if (source.host_name, source.slot_name) == (target.host_name, target.slot_name):
        yield "it is the slot that the service leaves"
        return
    if asked.leave_host and source.host_name == target.host_name:
        yield "it is on the host that is to be left"
        return
    if source.slot.device != target.slot.device or len(source.slot.gpus) != len(target.slot.gpus):
        yield f"it has {_size(target)}, and the service runs on {_size(source)}"
        return
    if facts is None:
        yield prospect.unreachable or "its host cannot be reached"
        return
    there = _is_there(asked, target, facts)
    if not there:
        yield from _occupied(target, facts)
    if prospect.misfit:
        yield prospect.misfit
    free = free_mib(prospect)
    needed = 0 if there else asked.memory_mib
    if needed is not None and free is not None and free < needed:
        yield f"{free} MiB of its GPU are free, and the service needs {needed} MiB"
    for folder in prospect.missing:
        yield f"the model `{folder}` is not there, and no host that can be reached has it"
    yield from prospect.refusals


def _is_there(asked: Asked, target: Place, facts: HostFacts) -> bool:
    """Whether it is the asked service that serves there: its move was interrupted after that."""
    source = f"{asked.source.host_name}/{asked.source.slot_name}"
    return has_come(source, asked.service, target, facts)


def has_come(source: str, service: ServiceSpec, target: Place, facts: HostFacts) -> bool:
    """Whether a service that was to come from `source` serves in a slot, and no other one."""
    come, now = facts.records.arrived.get(target.slot_name), serving(target, facts)
    if come is None or come.state != "moving" or now is None or now.service is None:
        return False
    alike = all(
        getattr(now.service, name) == getattr(service, name)
        for name in ("backend", "model", "mode", "budget", "topk")
    )
    return come.source == source and alike


def _occupied(target: Place, facts: HostFacts) -> Iterator[str]:
    now = serving(target, facts)
    if now is not None:
        mode = now.service.mode if now.service else "?"
        yield f"generation {now.number} ({mode}) serves there"
        return
    if running := facts.running_units(target.slot_name):
        yield f"{running[0].name} runs there"
        return
    records, slot = facts.records, target.slot_name
    if last_good(target, facts) and slot not in records.stopped and slot not in records.moved:
        yield "its own service is down and not stopped on purpose"
    if own_pids(target, facts):
        yield "processes of an earlier service are left there"


def rank(asked: Asked, prospect: Prospect) -> tuple[int, ...]:
    """The smaller, the better it is, among those that will do.

    The best is on a host without a replica of the model, then on the same port, then where the
    environment and then the weights are there already, then where most memory is free; the order
    of the inventory decides what is left.
    """
    return (
        prospect.place.host_name in asked.replicas,
        prospect.place.slot.port != asked.source.slot.port,
        not prospect.provisioned,
        sum(size for _, size in prospect.copied),
        -(free_mib(prospect) or 0),
    )


def _remarks(asked: Asked, prospect: Prospect) -> Iterator[str]:
    port = prospect.place.slot.port
    yield f"port {port}" + ("" if port == asked.source.slot.port else ", another one")
    if prospect.facts is None:
        return
    free = free_mib(prospect)
    if free is not None:
        yield f"{free} MiB free"
    if prospect.taken_from:
        yield f"environment is taken over from {prospect.taken_from}"
    else:
        yield "environment is there" if prospect.provisioned else "environment has to be built"
    for folder, size in prospect.copied:
        yield f"{folder} has to be copied ({size // MIB} MiB)"
    if prospect.place.host_name in asked.replicas:
        yield "its host serves the same model already"


def _size(target: Place) -> str:
    count = len(target.slot.gpus)
    return "no GPU" if not count else "one GPU" if count == 1 else f"{count} GPUs"
