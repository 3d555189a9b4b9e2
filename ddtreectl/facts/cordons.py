"""Cordons: places where nothing may be started, and why. They are kept in files on the host."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddtreectl.facts.gpu import Gpus
from ddtreectl.facts.output import as_float, as_int

UNREADABLE = "its file cannot be read"


@dataclass(frozen=True)
class Cordon:
    """Nothing may be started on a host, or on one of its GPUs.

    Attributes:
        gpu: the index that the GPU had; None for the whole host.
        uuid: the card, where it was known.
        reason: in the operator's words.
        by: user@host.
        at: ISO 8601.
        kept: where it is kept: on the host, or still with the operator because the host could not
            be reached.
        drained: why units do not start on the GPU either; empty where they do. The host itself
            says it, where an error of the application came again and again.
    """

    gpu: int | None
    uuid: str | None
    reason: str
    by: str
    at: str
    kept: Literal["host", "operator"] = "host"
    drained: str = ""

    @property
    def name(self) -> str:
        """The name of its file, without ending."""
        return "host" if self.gpu is None else self.uuid or f"gpu{self.gpu}"

    def __str__(self) -> str:
        """How messages name it."""
        what = "the host" if self.gpu is None else f"GPU {self.gpu}"
        if self.gpu is not None and self.gpu < 0:
            what = str(self.uuid)
        where = "" if self.kept == "host" else "; the host itself does not know it yet"
        return f"{what} is cordoned: {self.reason} ({self.by}, {self.at[:16]}{where})"

    def covers(self, index: int, gpus: Gpus) -> bool:
        """Whether it is about the GPU with that index: by its card where that is known."""
        if self.gpu is None:
            return True
        there = gpus.at(index)
        if self.uuid and there is not None and there.uuid:
            return self.uuid == there.uuid
        return self.gpu == index

    def to_json(self) -> dict[str, object]:
        """The content of its file."""
        kept = ("gpu", "uuid", "reason", "by", "at")
        drained = {"drained": self.drained} if self.drained else {}
        return {key: getattr(self, key) for key in kept} | drained


def cordon(name: str, content: Mapping[str, object]) -> Cordon:
    """The cordon in the file `name`.json; a damaged one is a cordon all the same."""
    gpu = as_int(content.get("gpu"))
    if gpu is None and name.startswith("gpu"):
        gpu = as_int(name.removeprefix("gpu"))
    uuid = content.get("uuid")
    if uuid is None and name.startswith("GPU-"):
        uuid = name
    if gpu is None and uuid:
        gpu = -1  # a card whose index is not known any more

    def word(key: str, otherwise: str) -> str:
        value = content.get(key)
        return value if isinstance(value, str) else otherwise

    return Cordon(
        gpu=gpu,
        uuid=uuid if isinstance(uuid, str) else None,
        reason=word("reason", UNREADABLE),
        by=word("by", "?"),
        at=word("at", "?"),
        drained=word("drained", ""),
    )


def settled(content: Mapping[str, object]) -> dict[str, float]:
    """Up to when errors in the kernel log have been dealt with, by PCI address or "" for all."""
    return {key: time for key, value in content.items() if (time := as_float(value)) is not None}
