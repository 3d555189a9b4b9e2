"""Cordons and uncordons a host or a GPU of it; what cannot reach the host is kept for it."""

import json
from dataclasses import dataclass, replace

from ddtreectl.apply import generations, moved
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.operator import now
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError, UnreachableError, UsageError
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.host import HostFacts
from ddtreectl.gpu.classify import expected
from ddtreectl.inventory.select import Target

NEEDED = ("records", "gpus", "kernel_log")


@dataclass(frozen=True)
class Cordoned:
    """What `cordon` did.

    Attributes:
        target: what is cordoned.
        cordon: the cordon.
        before: the cordon that it takes the place of; None where there was none.
        unreachable: why the host does not know it yet; empty where it does.
    """

    target: Target
    cordon: Cordon
    before: Cordon | None = None
    unreachable: str = ""


@dataclass(frozen=True)
class Uncordoned:
    """What `uncordon` did.

    Attributes:
        target: what is not cordoned any more.
        ended: the cordons that there were.
        settled: how many errors of the kernel log count as dealt with from now on.
        still: a cordon of the whole host, which holds for its GPUs as well.
        opened: slots whose services serve elsewhere, and which may be deployed to again.
    """

    target: Target
    ended: tuple[Cordon, ...]
    settled: int
    still: Cordon | None = None
    opened: tuple[str, ...] = ()


def cordon(
    session: Session, target: Target, reason: str, kept: KeptCordons, *, unreachable: str = ""
) -> Cordoned:
    """Have nothing more started on `target`.

    A host that cannot be reached gets the cordon with the next command that reaches it.

    Args:
        session: with the host.
        target: the host, or a GPU of it.
        reason: why, in words.
        kept: where the operator keeps it meanwhile.
        unreachable: why the host does not answer, where it has just been tried: it is not tried
            again.

    Raises:
        UsageError: the host has no such GPU.
        DdtreectlError: neither the host nor the operator's machine can keep it.
    """
    wanted = Cordon(target.gpu, None, reason, str(session.operator), now())
    host = target.host_name
    trouble = _keep(kept, host, wanted)  # at once: to reach the host may take a while, or fail
    try:
        if unreachable:
            raise UnreachableError(unreachable)
        facts = session.gather(only=NEEDED)
    except DdtreectlError as error:  # unreachable, or hung
        return _kept(target, wanted, error, trouble)
    kept.remove(host, wanted.name)
    _refuse_unknown_gpu(target, facts)
    wanted = _with_card(wanted, facts)
    try:
        deliver(session, kept)
        before = [entry for entry in _on_host(facts) if entry.name == wanted.name]
        wanted = replace(wanted, drained=before[0].drained if before else "")
        _write(session, wanted)
    except DdtreectlError as error:  # gone meanwhile, or its disk is full
        return _kept(target, wanted, error, _keep(kept, host, wanted))
    session.audit("cordon", target=str(target), reason=reason, gpu=wanted.uuid)
    return Cordoned(target, wanted, before[0] if before else None)


def _keep(kept: KeptCordons, host: str, wanted: Cordon) -> DdtreectlError | None:
    """Keep a cordon with the operator. Returns why that cannot be."""
    try:
        kept.add(host, wanted)
    except DdtreectlError as error:
        return error
    return None


def _kept(
    target: Target, wanted: Cordon, error: DdtreectlError, trouble: DdtreectlError | None
) -> Cordoned:
    """What was done for a host that cannot have its cordon; `trouble`: the operator cannot."""
    if trouble is not None:
        raise trouble from error
    return Cordoned(target, replace(wanted, kept="operator"), unreachable=error.message)


def _refuse_unknown_gpu(target: Target, facts: HostFacts) -> None:
    """A GPU that is neither there nor in the inventory is a slip of the hand."""
    if target.gpu is None or facts.gpus.state != "ok" or facts.gpus.at(target.gpu):
        return
    wanted = expected(target.host)
    if target.gpu >= wanted:
        there = max(len(facts.gpus.gpus), wanted)
        raise UsageError(
            f"`{target.host_name}` has no GPU {target.gpu}",
            hint=f"it has {there}, and their indices begin with 0",
        )


def uncordon(
    session: Session, target: Target, kept: KeptCordons, lock_wait: float = 0.0
) -> Uncordoned:
    """Let services be started on `target` again, and take what its log says as dealt with.

    Ending the cordon of a host ends those of its GPUs.

    Raises:
        UnreachableError: the host cannot be asked; what the operator kept for it is forgotten.
        StepError: it does not tell in time.
    """
    mine = tuple(entry for entry in kept.of(target.host_name) if _concerns(target, entry, None))
    kept.remove(target.host_name, *(entry.name for entry in mine))
    facts = session.certain(*NEEDED)
    deliver(session, kept)
    opened = _open_slots(session, target, facts, lock_wait)
    ended = tuple(entry for entry in _on_host(facts) if _concerns(target, entry, facts))
    if ended:
        generations.remove(session, *(session.layout.cordon(entry.name) for entry in ended))
    settled = _settle(session, target, facts)
    if ended or settled:
        session.audit("uncordon", target=str(target), errors=settled)
    everywhere = [entry for entry in facts.records.cordons if entry.gpu is None]
    still = everywhere[0] if everywhere and target.gpu is not None else None
    return Uncordoned(target, (*ended, *mine), settled, still, opened)


def deliver(session: Session, kept: KeptCordons) -> None:
    """Write to the host what was kept for it while it could not be reached."""
    waiting = kept.of(session.host.name)
    for entry in waiting:
        _write(session, entry)
        session.audit("cordon", target=entry.name, reason=entry.reason, by=entry.by, since=entry.at)
    kept.remove(session.host.name, *(entry.name for entry in waiting))


def _write(session: Session, entry: Cordon) -> None:
    text = json.dumps(entry.to_json(), sort_keys=True)
    session.host.put(session.layout.cordon(entry.name), text.encode())


def _on_host(facts: HostFacts) -> list[Cordon]:
    return [entry for entry in facts.records.cordons if entry.kept == "host"]


def _with_card(wanted: Cordon, facts: HostFacts) -> Cordon:
    """The cordon, with the UUID of its GPU where the driver tells it."""
    there = facts.gpus.at(wanted.gpu) if wanted.gpu is not None else None
    return replace(wanted, uuid=there.uuid if there else None)


def _concerns(target: Target, entry: Cordon, facts: HostFacts | None) -> bool:
    """Whether uncordoning `target` ends `entry`; of a lost card the index still names it."""
    if target.gpu is None or entry.gpu is None:
        return target.gpu is None
    return entry.gpu == target.gpu or (facts is not None and entry.covers(target.gpu, facts.gpus))


def _open_slots(
    session: Session, target: Target, facts: HostFacts, lock_wait: float
) -> tuple[str, ...]:
    """Let slots whose services serve elsewhere be deployed to again; they stay stopped."""
    gone = [entry for entry in target.places if entry.slot_name in facts.records.moved]
    if gone:
        lock = HostLock(session.host, session.layout, session.operator, wait=lock_wait)
        with locked(session, lock):
            for entry in gone:
                moved.open_slot(session, entry)
                worker = session.router.worker(entry) if session.router else None
                if session.router and worker:
                    session.router.forget(worker.name)
    return tuple(entry.slot_name for entry in gone)


def _settle(session: Session, target: Target, facts: HostFacts) -> int:
    """Note that the errors of the log up to now have been dealt with."""
    log = facts.kernel_log
    key: str | None = ""
    errors = list(log.errors)
    if target.gpu is not None:
        there = facts.gpus.at(target.gpu)
        key = there.pci if there else None
        errors = log.of(key)
    since = max(facts.records.settled.get("", 0.0), facts.records.settled.get(key or "", 0.0))
    fresh = [error for error in errors if error.last is None or error.last > since]
    if key is None or not fresh or log.now is None:
        return 0
    # The clock of the host tells whole seconds; an error of this very second is one of them.
    until = max(log.now, *(error.last or 0.0 for error in fresh))
    content = {**facts.records.settled, key: until}
    session.host.put(session.layout.settled, json.dumps(content, sort_keys=True).encode())
    return len(fresh)
