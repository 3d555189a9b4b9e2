"""Writes and reads the generations of a slot, and the journal of its swaps."""

import hashlib
import json
from shlex import quote

from ddtreectl import __version__
from ddtreectl.apply.claims import claim
from ddtreectl.apply.operator import now
from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.facts.records import UNKNOWN, Generation, Status
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.select import words
from ddtreectl.plan.step import Candidate
from ddtreectl.units import gpu_nodes


def stage(session: Session, slot: str, candidate: Candidate) -> None:
    """Write everything of a new generation; it is pending until its health is known."""
    folder = session.layout.generation(slot, candidate.number)
    record = {
        "slot": slot,
        "number": candidate.number,
        "service": candidate.service.model_dump(mode="json"),
        "environment": candidate.environment,
        "gpus": list(candidate.gpus),
        "unit": candidate.unit,
        "unit_sha256": _sha256(candidate.unit_text.encode()),
        "environment_file_sha256": _sha256(candidate.environment_file.encode()),
        "created_by": str(session.operator),
        "created_at": now(),
        "command": session.operator.command,
        "ddtreectl": __version__,
    }
    claim(session, [candidate.environment])
    session.host.put(f"{folder}/{candidate.unit}", candidate.unit_text.encode())
    session.host.put(f"{folder}/environment", candidate.environment_file.encode(), mode=0o600)
    for name, text in candidate.scripts.items():
        session.host.put(f"{folder}/{name}", text.encode())
    if gpu_nodes.NAME in candidate.unit_text:  # it is read again together with the unit itself
        path, content = session.layout.unit(gpu_nodes.NAME), gpu_nodes.render().encode()
        if session.host.read(path) != content:
            session.host.put(path, content)
    mark(session, slot, candidate.number, "pending")
    session.host.put(f"{folder}/generation.json", json.dumps(record, sort_keys=True).encode())


def mark(session: Session, slot: str, number: int, status: Status, reason: str = "") -> None:
    """Set the status of a generation."""
    state = {"status": status, "at": now(), "by": str(session.operator), "reason": reason}
    path = f"{session.layout.generation(slot, number)}/state.json"
    session.host.put(path, json.dumps(state, sort_keys=True).encode())


def load(session: Session, generation: Generation) -> Candidate:
    """A generation that is on the host, as a candidate for service.

    Raises:
        StepError: a part of it is gone or changed.
    """
    folder = session.layout.generation(generation.slot, generation.number)
    unit = session.host.read(f"{folder}/{generation.unit}")
    environment = session.host.read(f"{folder}/environment")
    damaged = f"generation {generation.number} of `{generation.slot}` is damaged"
    place = words(session.host.name, session.entry, generation.slot)
    hint = f"`rollback --to` may name another; after `ddtreectl stop {place}` a deploy can"
    if unit is None or environment is None or generation.service is None:
        raise StepError(damaged, cause=f"files are missing in {folder}", hint=hint)
    for name, content, wanted in (
        (generation.unit, unit, generation.unit_sha256),
        ("environment", environment, generation.environment_file_sha256),
    ):
        if wanted not in {UNKNOWN, _sha256(content)}:
            cause = f"{folder}/{name} was changed after its deploy"
            raise StepError(damaged, cause=cause, hint=hint)
    return Candidate(
        number=generation.number,
        service=generation.service,
        environment=generation.environment,
        unit=generation.unit,
        unit_text=unit.decode(errors="replace"),
        environment_file=environment.decode(errors="replace"),
        staged=True,
        gpus=generation.gpus,
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def begin_swap(session: Session, slot: str, to: int, back: int | None) -> None:
    """Note on the host that a swap is in progress, so that anyone can finish it."""
    journal = {"to": to, "back": back, "owner": str(session.operator), "since": now()}
    session.host.put(session.layout.swap(slot), json.dumps(journal, sort_keys=True).encode())


def end_swap(session: Session, slot: str) -> None:
    """Note that no swap is in progress."""
    remove(session, session.layout.swap(slot))


def remove(session: Session, *paths: str) -> None:
    """Remove files; one that is not there is no error."""
    words = " ".join(quote(path) for path in paths)
    result = session.host.run(["sh", "-c", f"rm -f -- {words}"], deadline=30.0)
    check(result, f"files on `{session.host.name}` cannot be removed")
