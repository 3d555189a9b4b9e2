"""What a host runs, for a reader: one entry a slot that has ever served. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import Answer, base_url
from ddtreectl.facts.output import as_float, as_int
from ddtreectl.facts.records import Generation
from ddtreectl.facts.systemd import Unit
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.select import Place
from ddtreectl.plan.refusals import port_owner
from ddtreectl.plan.wish import current

Health = Literal["healthy", "starting", "draining", "unhealthy", "failed", "stopped"]


@dataclass(frozen=True)
class ServiceStatus:
    """One service.

    Attributes:
        host: the host.
        slot: the slot.
        unit: its unit.
        mode: `linear`, `shadow` or `tree`; what the service says, else what was deployed.
        backend: the server program.
        budget: nodes of the tree besides the root.
        topk: candidates for each depth.
        port: where it listens.
        health: `healthy` (unit runs, owns the port, answers and is ready), `starting`, `draining`,
            `unhealthy` (runs and does not answer as it should), `failed` (should run and does
            not), `stopped` (on purpose).
        generation: the deployed state that runs, or that would.
        generation_status: `pending`, `good` or `failed`.
        acceptance_length: tokens a round since the start (τ), or None before any request.
        tokens_per_second: decoding speed since the start, or None before any request.
        uptime_seconds: since the process started, or None.
        pid: the main process, or None.
        model: the target model.
        environment: the environment that it runs from.
        deployed_by: user@host.
        deployed_at: ISO 8601.
        restarts: how often it ended and was restarted, or None where nothing restarts it.
        problem: what is wrong, in words; empty where nothing is.
    """

    host: str
    slot: str
    unit: str
    mode: str | None
    backend: str | None
    budget: int | None
    topk: int | None
    port: int
    health: Health
    generation: int
    generation_status: str
    acceptance_length: float | None
    tokens_per_second: float | None
    uptime_seconds: float | None
    pid: int | None
    model: str | None
    environment: str
    deployed_by: str
    deployed_at: str
    restarts: int | None
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
        empty_slots: slots that have never served.
        services: the services.
    """

    host: str
    supervisor: str | None
    restarts_services: bool
    lock: str | None
    interrupted: tuple[str, ...]
    empty_slots: tuple[str, ...]
    services: tuple[ServiceStatus, ...]


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
        if found:
            services.append(found)
        else:
            empty.append(slot_name)
    without = "docker-systemctl-replacement" if facts.without_systemd else None
    return HostStatus(
        host=name,
        supervisor="systemd" if facts.systemd else without,
        restarts_services=facts.systemd,
        lock=str(facts.records.lock) if facts.records.lock and locked else None,
        interrupted=tuple(
            f"the swap of `{s.slot}` to generation {s.to}, begun by {s.owner} at {s.since}"
            for s in facts.records.swaps
            if not locked
        ),
        empty_slots=tuple(empty),
        services=tuple(services),
    )


def _service(place: Place, facts: HostFacts, now: float) -> ServiceStatus | None:
    generation = current(place, facts)
    if generation is None:
        return None
    unit = facts.unit(generation.unit)
    spec = generation.service
    answers = _answers(place, facts)
    info = answers["/server_info"].content if unit.running else {}
    totals = info.get("totals")
    totals = totals if isinstance(totals, dict) else {}
    health, problem = _health(place, facts, unit, answers)
    process = facts.processes.get(unit.main_pid or 0)
    return ServiceStatus(
        host=place.host_name,
        slot=place.slot_name,
        unit=generation.unit,
        mode=str(info["mode"]) if "mode" in info else spec.mode.value if spec else None,
        backend=spec.backend if spec else None,
        budget=as_int(info.get("budget")) or (spec.budget if spec else None),
        topk=as_int(info.get("topk")) or (spec.topk if spec else None),
        port=place.slot.port,
        health=health,
        generation=generation.number,
        generation_status=generation.status,
        acceptance_length=as_float(totals.get("acceptance_length")),
        tokens_per_second=as_float(totals.get("decode_tokens_per_second")),
        uptime_seconds=max(0.0, now - process.started) if process and unit.running else None,
        pid=unit.main_pid if unit.running else None,
        model=spec.model if spec else None,
        environment=generation.environment,
        deployed_by=generation.created_by,
        deployed_at=generation.created_at,
        restarts=unit.restarts,
        problem=problem or _drift(generation, facts) or _restarted(unit),
    )


def _answers(place: Place, facts: HostFacts) -> Mapping[str, Answer]:
    base = base_url(place.slot.address, place.slot.port)
    return {
        path: facts.answers.get(f"{base}{path}", Answer(f"{base}{path}", None, error="not asked"))
        for path in ("/health", "/ready", "/server_info")
    }


def _health(
    place: Place, facts: HostFacts, unit: Unit, answers: Mapping[str, Answer]
) -> tuple[Health, str]:
    foreign = list(port_owner(place, facts))
    if not unit.running:
        if place.slot_name in facts.records.stopped:
            return "stopped", ""
        return "failed", foreign[0] if foreign else f"unit is {unit}"
    if foreign:
        return "unhealthy", foreign[0]
    ready, alive = answers["/ready"], answers["/health"]
    if ready.ok and alive.ok:
        return "healthy", ""
    said = ready.content.get("status")
    if said == "draining":
        return "draining", ""
    if said == "starting" or unit.active == "activating" or not facts.port_taken(place.slot.port):
        return "starting", ""
    return "unhealthy", str(ready if alive.ok else alive)


def _drift(generation: Generation, facts: HostFacts) -> str:
    text = facts.unit_files.get(generation.unit)
    if text is None:
        return "the unit file is gone"
    if hashlib.sha256(text.encode()).hexdigest() != generation.unit_sha256:
        return f"the unit file differs from the one of generation {generation.number}"
    return ""


def _restarted(unit: Unit) -> str:
    if not unit.restarts:
        return ""
    times = "once" if unit.restarts == 1 else f"{unit.restarts} times"
    return f"it ended and was restarted {times}; `ddtreectl logs` may say why"
