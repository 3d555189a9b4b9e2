"""What ddtreectl keeps on a host: generations, lock, swaps, cordons and the like."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.moves import Move
from ddtreectl.inventory.service import ServiceSpec

Status = Literal["pending", "good", "failed"]
UNKNOWN = "?"
"""A word that a record does not have."""

STATUSES: tuple[Status, ...] = ("pending", "good", "failed")


@dataclass(frozen=True)
class Generation:
    """One deployed state of a slot.

    Attributes:
        slot: the slot.
        number: 1 and up, never used twice.
        status: `pending` until it has passed every stage of health, then `good` or `failed`.
        service: what it serves; None where the record cannot be read any more.
        environment: the name of its environment.
        unit: the name of its unit.
        unit_sha256: hash of the unit's text.
        environment_file_sha256: hash of the file that the unit's EnvironmentFile= names.
        created_by: user@host of the operator.
        created_at: ISO 8601.
        changed_at: when the status last changed.
        reason: why it failed.
        gpus: the UUIDs of the cards that it is bound to.
    """

    slot: str
    number: int
    status: Status
    service: ServiceSpec | None
    environment: str
    unit: str
    unit_sha256: str
    environment_file_sha256: str
    created_by: str
    created_at: str
    changed_at: str = ""
    reason: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class LockOwner:
    """Who works on the host.

    Attributes:
        owner: the user.
        pid: the operator's process.
        ticks: start time of that process, so that a reused pid is not taken for it.
        host: the machine that it runs on.
        boot: the boot id of that machine.
        since: ISO 8601.
        command: what was typed.
        token: names this lock and no other.
        age: seconds since its owner last renewed it.
    """

    owner: str
    pid: int
    ticks: int
    host: str
    boot: str
    since: str
    command: str
    token: str
    age: float

    def __str__(self) -> str:
        """How messages name it."""
        if self.damaged:
            return "someone whose lock file cannot be read"
        return f"{self.owner}@{self.host} (pid {self.pid}, since {self.since}): {self.command}"

    @property
    def damaged(self) -> bool:
        """Whether the file names nobody."""
        return self.token == UNKNOWN


@dataclass(frozen=True)
class Swap:
    """A swap that has begun and not ended.

    Attributes:
        slot: the slot.
        to: the generation that is being started.
        back: the generation to return to, if there is one.
        owner: who began it.
        since: ISO 8601.
    """

    slot: str
    to: int
    back: int | None
    owner: str
    since: str


@dataclass(frozen=True)
class Provisioned:
    """What was last provisioned for a backend.

    Attributes:
        backend: the backend.
        environment: the name of its environment.
        torch: the version of torch.
        build: the CUDA build, or `cpu`.
        wheelhouse: the wheelhouse on the host that it was built from; None where the host's own
            pip configuration was gone by.
        requirements: the exact list of packages of that wheelhouse, if it had one.
        torch_wheel: the name of torch's wheel in it.
        engine: the hash of the engine's wheel, or nothing.
        taken_from: the host that it was taken over from, or nothing.
    """

    backend: str
    environment: str
    torch: str
    build: str
    wheelhouse: str | None = None
    requirements: str | None = None
    torch_wheel: str | None = None
    engine: str = ""
    taken_from: str = ""


@dataclass(frozen=True)
class Records:
    """All records of a host.

    Attributes:
        generations: in order of slot and number.
        swaps: unfinished swaps by slot.
        stopped: slots that an operator has stopped on purpose.
        environments: names of finished environments.
        unfinished: of those whose build has not come to its end, or goes on now.
        claimed: of both kinds, those that another root of the host uses.
        provisioned: what was provisioned, by backend.
        lock: who works on the host now.
        cordons: where nothing may be started.
        settled: up to when errors in the kernel log have been dealt with, by PCI address.
        moved: services that have left their slot, by slot.
        arrived: services that have come to a slot, or are about to, by slot.
    """

    generations: tuple[Generation, ...] = ()
    swaps: tuple[Swap, ...] = ()
    stopped: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()
    unfinished: frozenset[str] = frozenset()
    claimed: frozenset[str] = frozenset()
    provisioned: Mapping[str, Provisioned] = field(default_factory=dict)
    lock: LockOwner | None = None
    cordons: tuple[Cordon, ...] = ()
    settled: Mapping[str, float] = field(default_factory=dict)
    moved: Mapping[str, Move] = field(default_factory=dict)
    arrived: Mapping[str, Move] = field(default_factory=dict)

    def with_cordons(self, kept: tuple[Cordon, ...]) -> "Records":
        """The records with those of `kept` that the host does not have."""
        known = {cordon.name for cordon in self.cordons}
        more = tuple(cordon for cordon in kept if cordon.name not in known)
        return replace(self, cordons=(*self.cordons, *more)) if more else self

    def with_moves(self, kept: tuple[Move, ...]) -> "Records":
        """The records with those of `kept`, moves from this host, that the host does not have."""
        more = {entry.source_slot: entry for entry in kept if entry.state != "moving"}
        return replace(self, moved={**more, **self.moved}) if more else self

    def of_slot(self, slot: str) -> list[Generation]:
        """The generations of a slot, oldest first."""
        return [entry for entry in self.generations if entry.slot == slot]

    def swap_of(self, slot: str) -> Swap | None:
        """The unfinished swap of a slot."""
        return next((entry for entry in self.swaps if entry.slot == slot), None)
