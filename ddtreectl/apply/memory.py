"""The memory of a slot's GPUs: back to what it was without the service, before the next one loads.

A worker that outlives its server frees the port at once and holds the memory, so that the next
service runs out of it. What must be free again is what the slot's own processes held; whatever
else is in use on the card is not ours.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ddtreectl.apply.exchange import pauses
from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.facts.gpu import Gpu
from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.select import Place
from ddtreectl.plan.refusals import own_pids

SLACK_MIB = 512
"""What drivers and contexts of others may take meanwhile."""

MARGIN = 10.0
"""Seconds that a driver may take to give memory back, beyond a service's own time to end."""


@dataclass(frozen=True)
class Held:
    """What a GPU held before its service was stopped.

    Attributes:
        used: MiB in use.
        baseline: MiB in use without the slot's own processes.
    """

    used: int
    baseline: int


def measure(session: Session, place: Place) -> dict[str, Held]:
    """What each GPU of the slot holds now, by UUID; a GPU that does not tell is absent."""
    if not place.slot.gpus:
        return {}
    facts = session.certain("gpus", "processes", "units")
    own = own_pids(place, facts)
    found = {}
    for gpu in _cards(place, facts):
        if gpu.uuid and gpu.memory_used_mib is not None:
            ours = sum(
                held.memory_mib or 0
                for held in facts.gpus.processes
                if held.gpu_uuid == gpu.uuid and held.pid in own
            )
            found[gpu.uuid] = Held(gpu.memory_used_mib, max(gpu.memory_used_mib - ours, 0))
    return found


def await_baseline(
    session: Session, place: Place, before: Mapping[str, Held], patience: float
) -> None:
    """Wait until the memory of the slot's GPUs is back at its baseline, and say so.

    Args:
        session: the operator at work.
        place: the slot.
        before: what `measure` has found before the service was stopped.
        patience: seconds that it may take.

    Raises:
        StepError: it does not come back in time; whoever holds it is named.
    """
    began, pause = time.monotonic(), pauses(session.interrupts)
    while before:
        facts = session.certain("gpus", "processes", "units")
        cards = [(gpu, before[uuid]) for uuid in before if (gpu := facts.gpus.called(uuid))]
        over = [
            (gpu, held)
            for gpu, held in cards
            if (gpu.memory_used_mib or 0) > held.baseline + SLACK_MIB
        ]
        if not over:
            for gpu, held in cards:
                session.report.say(
                    f"    {gpu}: {held.used} MiB before, {gpu.memory_used_mib} MiB now"
                )
            return
        gpu, held = over[0]
        if time.monotonic() - began > patience:
            raise StepError(
                f"the memory of {gpu} on `{place.host_name}` is not given back: "
                f"{gpu.memory_used_mib} MiB in use, {held.baseline} MiB without the old service",
                cause="\n".join(_holders(facts, gpu)) or "the driver names no process",
                hint="a process that is stuck, or a driver that has lost track, needs the card to "
                "be reset or the host to be rebooted",
            )
        session.report.detail(f"{gpu}: {gpu.memory_used_mib} MiB in use")
        next(pause)


def _cards(place: Place, facts: HostFacts) -> list[Gpu]:
    return [gpu for index in place.slot.gpus if (gpu := facts.gpus.at(index)) is not None]


def _holders(facts: HostFacts, gpu: Gpu) -> list[str]:
    return [
        f"{facts.processes.get(held.pid) or f'pid {held.pid}'}: {held.memory_mib} MiB"
        for held in facts.gpus.processes
        if held.gpu_uuid == gpu.uuid
    ]
