"""Slots that are down because of their GPU: the units themselves have refused to start. Pure."""

from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.systemd import Unit
from ddtreectl.gpu.classify import classify
from ddtreectl.inventory.select import Place


def drained(place: Place, facts: HostFacts, unit: Unit) -> str:
    """Why `unit`, which does not run, will not start on the GPUs of its slot; empty if it may.

    A host drains a GPU by itself where an error of the application comes again and again, and
    says so in a cordon. Of a GPU that is gone, or has to be reset, its health tells.
    """
    indices = place.slot.gpus
    for cordon in facts.records.cordons:
        if cordon.drained and any(cordon.covers(index, facts.gpus) for index in indices):
            gpu = f"{place.host_name}:{indices[0] if cordon.gpu is None else cordon.gpu}"
            said = f"GPU {cordon.gpu} was drained by the host itself: {cordon.drained}"
            return f"{said}; {_way_out(gpu)}, `ddtreectl uncordon {gpu}` lets it start again"
    if unit.result != "exec-condition" or not indices:
        return ""
    health = classify(place.host_name, place.host, facts, facts.records.settled)
    found = health.against(indices)
    if found is None:
        return ""
    name, finding = found
    said = f"{f'{name}: ' if name else ''}{finding.reason}"
    return f"{said}; {_way_out(f'{place.host_name}:{indices[0]}')}"


def _way_out(gpu: str) -> str:
    return f"`ddtreectl migrate {gpu}` moves its service"
