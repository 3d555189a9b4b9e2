"""What moves mean for the host that is looked at: splits, and moves that have not ended. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddtreectl.facts.host import HostFacts


@dataclass(frozen=True)
class MoveRemark:
    """Something about a move that a reader should know.

    Attributes:
        slot: the slot of this host.
        text: in words.
        hint: the next command; empty where there is nothing to do.
    """

    slot: str
    text: str
    hint: str = ""


def move_remarks(name: str, facts: HostFacts, *, locked: bool) -> Iterator[MoveRemark]:
    """What is to be said of the moves from and to a host.

    Args:
        name: the host.
        facts: what was found there.
        locked: whether someone works on it now.
    """
    for slot, gone in facts.records.moved.items():
        if facts.running_units(slot):
            yield MoveRemark(
                slot,
                f"split: it runs here, although its service has moved to {gone.target}",
                f"`ddtreectl migrate {name} --resume` fences it",
            )
        elif gone.pending:
            yield MoveRemark(
                slot,
                f"its service has moved to {gone.target}, and it may start here again",
                f"`ddtreectl migrate {name} --resume` fences it",
            )
    for slot, come in facts.records.arrived.items():
        resume = f"`ddtreectl migrate {come.source_host} --resume`"
        if come.state == "moving" and not locked:
            text = f"its service is to come from {come.source}; that move was interrupted"
            yield MoveRemark(slot, text, f"{resume} goes on with it")
        elif come.pending:
            text = f"its service has come from {come.source}, which is not fenced yet"
            yield MoveRemark(slot, text, f"{resume} fences it once it can be reached")
