"""What a host runs, for a reader: one entry a slot that has ever served. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ddtreectl.errors import DdtreectlError, ExitCode
from ddtreectl.facts import told
from ddtreectl.facts.gpu import Gpus
from ddtreectl.facts.host import ASKED, HostFacts
from ddtreectl.facts.http import Answer, base_url
from ddtreectl.facts.records import Generation
from ddtreectl.facts.systemd import Unit
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.select import Place, words
from ddtreectl.inventory.service import Budget, ServiceSpec
from ddtreectl.plan.drained import drained
from ddtreectl.plan.gpu_report import GpuReport, gpu_report
from ddtreectl.plan.moves import MoveRemark, move_remarks
from ddtreectl.plan.refusals import port_owner
from ddtreectl.plan.wish import current

FINE = {"healthy", "stopped", "moved", "starting", "draining", "swapping"}

Health = Literal[
    "healthy",
    "starting",
    "draining",
    "swapping",
    "unhealthy",
    "failed",
    "stopped",
    "moved",
    "drained",
]


@dataclass(frozen=True)
class ServiceStatus:
    """One service.

    Attributes:
        host: the host.
        slot: the slot.
        unit: its unit.
        mode: `linear`, `shadow` or `tree`; what the service says, else what was deployed.
        backend: the server program.
        version: of the server program, as it says itself.
        budget: nodes of the tree besides the root; of `auto` those in use.
        topk: candidates for each depth.
        port: where it listens.
        health: `healthy` (unit runs, owns the port, answers and is ready), `starting`, `draining`,
            `swapping` (an operator is at it now), `unhealthy` (runs and does not answer as it
            should), `failed` (should run and does not), `stopped` (on purpose),
            `moved` (serves elsewhere), `drained` (should run, and its GPU keeps it from it).
        moved_to: where, as HOST/SLOT; None for a service that has not moved.
        generation: the deployed state that runs, or that would.
        generation_status: `pending`, `good` or `failed`.
        uptime_seconds: since the process started, or None.
        pid: the main process, or None.
        model: the target model.
        environment: the environment that it runs from.
        deployed_by: user@host.
        deployed_at: ISO 8601.
        restarts: how often it ended and was restarted, or None where nothing restarts it.
        drift: how the host differs from the generation, in words; empty where it does not.
        problem: what is wrong, in words; empty where nothing is.
    """

    host: str
    slot: str
    unit: str
    mode: str | None
    backend: str | None
    version: str | None
    budget: Budget | None
    topk: int | None
    port: int
    health: Health
    moved_to: str | None
    generation: int
    generation_status: str
    max_running: int | None
    effective_max_running: int | None
    acceptance_length: float | None
    tokens_per_second: float | None
    tokens: float | None
    running: int | None
    queued: int | None
    uptime_seconds: float | None
    pid: int | None
    model: str | None
    environment: str
    deployed_by: str
    deployed_at: str
    restarts: int | None
    drift: str
    problem: str


@dataclass(frozen=True)
class HostStatus:
    """One host.

    Attributes:
        host: its name.
        supervisor: what runs units there, or None where nothing does.
        restarts_services: whether it restarts a service that ends.
        lock: who works on the host, or None.
        interrupted: swaps that nobody works on any more, in words.
        rollbacks: the command that sets each of them right.
        empty_slots: slots that have never served.
        gpus: what the driver says of the GPUs: facts, and no judgement.
        services: the services.
        health: what is wrong with the GPUs, and what is cordoned.
        moves: what is to be said of services that have come or gone.
    """

    host: str
    supervisor: str | None
    restarts_services: bool
    lock: str | None
    interrupted: tuple[str, ...]
    empty_slots: tuple[str, ...]
    gpus: Gpus
    services: tuple[ServiceStatus, ...]
    health: GpuReport = field(default_factory=GpuReport)
    moves: tuple[MoveRemark, ...] = ()
    rollbacks: tuple[str, ...] = ()


def host_status(
    name: str, entry: HostEntry, facts: HostFacts, *, now: float, locked: bool
) -> HostStatus:
    """What `facts` mean.

    Args:
        name: the host.
        entry: its entry in the inventory.
        facts: what was found.
        now: the time in seconds since the epoch.
        locked: whether someone works under the host's lock.
    """
    services, empty = [], []
    for slot_name, slot in entry.slots.items():
        place = Place(name, entry, slot_name, slot)
        found = _service(place, facts, now)
        swap = facts.records.swap_of(slot_name) if locked else None
        if found and swap:
            problem = f"{swap.owner} is bringing generation {swap.to} in, since {swap.since[:19]}"
            services.append(replace(found, health="swapping", problem=problem))
        elif found:
            services.append(found)
        else:
            empty.append(slot_name)
    swaps = () if locked else facts.records.swaps
    without = "docker-systemctl-replacement" if facts.without_systemd else None
    return HostStatus(
        host=name,
        supervisor="systemd" if facts.systemd else without,
        restarts_services=facts.systemd,
        lock=str(facts.records.lock) if facts.records.lock and locked else None,
        interrupted=tuple(
            f"the swap of `{s.slot}` to generation {s.to}, begun by {s.owner} at {s.since[:19]}"
            for s in swaps
        ),
        rollbacks=tuple(f"ddtreectl rollback {words(name, entry, s.slot)}" for s in swaps),
        empty_slots=tuple(empty),
        gpus=facts.gpus,
        services=tuple(services),
        health=gpu_report(name, entry, facts),
        moves=tuple(move_remarks(name, facts, locked=locked)),
    )


def moved_away(host: HostStatus, away: Mapping[str, str]) -> HostStatus:
    """The status of a host, with what others know of where its services have gone.

    A host that was out of reach when its service moved has no marker of it; its unit is kept down
    by the router, which the unit asks before it starts, or by whatever was wrong with the host.

    Args:
        host: as its own facts have it.
        away: for slots whose service has moved, the slot that stands for it; both as HOST/SLOT.
    """
    services = (
        replace(entry, health="moved", moved_to=to, drift="", problem="")
        if entry.health in {"failed", "drained"} and (to := away.get(f"{entry.host}/{entry.slot}"))
        else entry
        for entry in host.services
    )
    return replace(host, services=tuple(services))


def _service(place: Place, facts: HostFacts, now: float) -> ServiceStatus | None:
    generation = current(place, facts)
    if generation is None:
        return None
    unit = facts.unit(generation.unit)
    spec = generation.service
    backend, mode = (spec.backend, spec.mode.value) if spec else (None, None)
    answers = _answers(place, facts)
    seen = told.read(answers if unit.running else {}, backend or "", mode)
    health, problem = _health(place, facts, unit, answers)
    process = facts.processes.get(unit.main_pid or 0)
    gone = facts.records.moved.get(place.slot_name)
    # Without a unit file, where it was opened after a move: whatever starts it installs one first.
    bare = place.slot_name in facts.records.stopped and generation.unit not in facts.unit_files
    drift = "" if gone or bare else drift_of(generation, facts, unit)
    return ServiceStatus(
        host=place.host_name,
        slot=place.slot_name,
        unit=generation.unit,
        mode=seen.mode or mode,
        backend=backend,
        version=seen.version,
        budget=seen.budget or (spec.budget if spec else None),
        topk=seen.topk or (spec.topk if spec else None),
        port=place.slot.port,
        health=health,
        moved_to=gone.target if gone else None,
        generation=generation.number,
        generation_status=generation.status,
        max_running=spec.max_running if spec else None,
        effective_max_running=seen.max_running,
        acceptance_length=seen.acceptance_length,
        tokens_per_second=seen.tokens_per_second,
        tokens=seen.tokens,
        running=seen.running,
        queued=seen.queued,
        uptime_seconds=max(0.0, now - process.started) if process and unit.running else None,
        pid=unit.main_pid if unit.running else None,
        model=spec.model if spec else None,
        environment=generation.environment,
        deployed_by=generation.created_by,
        deployed_at=generation.created_at,
        restarts=unit.restarts,
        drift=drift,
        problem=problem or drift or _restarted(unit) or _fewer(spec, seen),
    )


def _answers(place: Place, facts: HostFacts) -> Mapping[str, Answer]:
    base = base_url(place.slot.address, place.slot.port)
    return {
        path: facts.answers.get(f"{base}{path}", Answer(f"{base}{path}", None, error="not asked"))
        for path in ASKED
    }


def _health(
    place: Place, facts: HostFacts, unit: Unit, answers: Mapping[str, Answer]
) -> tuple[Health, str]:
    foreign = list(port_owner(place, facts))
    if not unit.running:
        if place.slot_name in facts.records.moved:
            return "moved", ""
        if place.slot_name in facts.records.stopped:
            return "stopped", ""
        if why := drained(place, facts, unit):
            return "drained", why
        return "failed", foreign[0] if foreign else f"unit is {unit}"
    if foreign:
        return "unhealthy", foreign[0]
    ready, alive = answers["/ready"], answers["/health"]
    if told.is_ready(ready, alive) and alive.ok:
        return "healthy", ""
    said = ready.content.get("status")
    if said == "draining":
        return "draining", ""
    if said == "starting" or unit.active == "activating" or not facts.port_taken(place.slot.port):
        return "starting", ""
    return "unhealthy", str(ready if alive.ok else alive)


def drift_of(generation: Generation, facts: HostFacts, unit: Unit) -> str:
    """How a host differs from a generation, in words; empty where it does not."""
    text = facts.unit_files.get(generation.unit)
    if text is None:
        return "the unit file is gone"
    if hashlib.sha256(text.encode()).hexdigest() != generation.unit_sha256:
        return f"the unit file differs from the one of generation {generation.number}"
    if unit.drop_ins:
        return f"{', '.join(unit.drop_ins)} changes the unit of generation {generation.number}"
    if unit.needs_reload:
        return "the unit file was written after the service manager has read it"
    return ""


def _fewer(spec: ServiceSpec | None, seen: told.Told) -> str:
    """SGLang lowers the number of requests to what its memory holds, and only its log says so."""
    if spec is None or seen.max_running is None or seen.max_running >= spec.max_running:
        return ""
    return f"it decodes {seen.max_running} requests at a time, and {spec.max_running} were asked"


def _restarted(unit: Unit) -> str:
    if not unit.restarts:
        return ""
    times = "once" if unit.restarts == 1 else f"{unit.restarts} times"
    return f"it ended and was restarted {times}; `ddtreectl logs` may say why"


def exit_code(hosts: Sequence[HostStatus], failures: Mapping[str, DdtreectlError]) -> ExitCode:
    """What the state of hosts means for a shell; `failures` has those that were not reached."""
    if failures and hosts:
        return ExitCode.PARTIAL
    if failures:
        codes = {failure.exit_code for failure in failures.values()}
        return codes.pop() if len(codes) == 1 else ExitCode.UNREACHABLE
    wrong = any(s.health not in FINE or s.drift for host in hosts for s in host.services)
    unfinished = any(host.interrupted or host.moves for host in hosts)
    broken = any(host.health.wrong for host in hosts)
    return ExitCode.FAILED if wrong or unfinished or broken else ExitCode.DONE
