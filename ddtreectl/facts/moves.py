"""Moves: services that have gone from one slot to another, and how far that has come.

The target has a record of it from the first step on. The source gets a marker, which its units
look at before they start, as soon as it can be reached once the target serves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import ValidationError

from ddtreectl.facts.output import as_int
from ddtreectl.inventory.service import ServiceSpec

State = Literal["moving", "moved", "fenced"]
STATES: tuple[State, ...] = ("moving", "moved", "fenced")


@dataclass(frozen=True)
class Move:
    """The service of a slot on its way to another, or there.

    Attributes:
        source: `host/slot` that it comes from.
        target: `host/slot` that it goes to.
        state: `moving` until the target has passed its checks; `moved` from then on; `fenced` once
            the source is known not to serve, and not to start, any more.
        generation: of the source, which an undo brings back; None where it was not known.
        service: what moves; None where a record cannot be read.
        by: user@host.
        at: ISO 8601.
    """

    source: str
    target: str
    state: State
    generation: int | None
    service: ServiceSpec | None
    by: str
    at: str

    @property
    def source_host(self) -> str:
        """The host that the service comes from."""
        return self.source.partition("/")[0]

    @property
    def source_slot(self) -> str:
        """The slot of that host."""
        return self.source.partition("/")[2]

    @property
    def target_host(self) -> str:
        """The host that the service goes to."""
        return self.target.partition("/")[0]

    @property
    def pending(self) -> bool:
        """Whether the target serves and the source may as well."""
        return self.state == "moved"

    def now(self, state: State) -> "Move":
        """The same move, that far."""
        return replace(self, state=state)

    def to_json(self) -> dict[str, object]:
        """The content of its file."""
        return {
            "source": self.source,
            "target": self.target,
            "state": self.state,
            "generation": self.generation,
            "service": self.service.model_dump(mode="json") if self.service else None,
            "by": self.by,
            "at": self.at,
        }


def move(content: Mapping[str, object], *, source: str = "?/?", target: str = "?/?") -> Move:
    """The move in a file; of a damaged one, what can be read of it.

    Args:
        content: of the file.
        source: the slot that it comes from, where the file does not say.
        target: the slot that it goes to, likewise.
    """

    def word(key: str, otherwise: str) -> str:
        value = content.get(key)
        return value if isinstance(value, str) else otherwise

    try:
        service = ServiceSpec.model_validate(content.get("service"), strict=False)
    except ValidationError:
        service = None
    named = content.get("state")
    return Move(
        source=word("source", source),
        target=word("target", target),
        state=next((state for state in STATES if state == named), "moved"),
        generation=as_int(content.get("generation")),
        service=service,
        by=word("by", "?"),
        at=word("at", "?"),
    )
