"""What a router says of its workers, and what it is told to have.

`GET /workers` of smg 1.13.0 lists them with a status (`ready`, `not_ready`, `draining`, …), the
number of requests that it has in flight to each, and the models that it sends there. One that came
from the list in a file carries the name that it has there as the label `smg.ai/discovery-id`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ddtreectl.facts.http import Answer
from ddtreectl.facts.output import as_int, json_object
from ddtreectl.inventory.workers import parts

NAME = "smg.ai/discovery-id"

State = Literal["up", "down", "absent", "unreachable"]


@dataclass(frozen=True)
class RouterWorker:
    """A worker as the router has it.

    Attributes:
        name: HOST/SLOT, or its URL where somebody else has put it in.
        moved: slots that it stands for besides its own.
        url: where the router reaches it.
        status: in the router's words; only `ready` ones get requests.
        load: requests in flight to it, or None.
        models: what it serves; nothing where the router has not asked it yet.
    """

    name: str
    moved: frozenset[str]
    url: str
    status: str
    load: int | None
    models: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WorkerList:
    """The list of workers on the router's host.

    Attributes:
        listed: the slots that are to get requests, with the address of each.
        moved: for a slot whose service was moved, the slot that stands for it.
        out: the models of each worker that is out for a swap and should be back.
        revision: how many changes it has seen.
        made: whether the change that was asked for was made.
    """

    listed: Mapping[str, str]
    moved: Mapping[str, str]
    out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    revision: int = 0
    made: bool = False


@dataclass(frozen=True)
class RouterFacts:
    """The router, as its host sees it.

    Attributes:
        state: `up` (it answers), `down` (it is deployed and does not answer), `absent` (it was
            never deployed) or `unreachable` (its host does not answer).
        problem: why it is not up, in words.
        listed: the slots that it is told to send requests to, with the address of each.
        moved: for a slot whose service was moved, the slot that stands for it.
        workers: those that it has.
        out: the models of each worker that an operator swaps just now, and that comes back.
    """

    state: State
    problem: str = ""
    listed: Mapping[str, str] | None = None
    moved: Mapping[str, str] | None = None
    workers: tuple[RouterWorker, ...] = ()
    out: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def worker(self, name: str) -> RouterWorker | None:
        """The worker that is the slot `name`, if the router has it."""
        return next((entry for entry in self.workers if entry.name == name), None)

    def serves(self, name: str) -> bool:
        """Whether requests may reach the slot `name` through the router."""
        worker = self.worker(name)
        return name in (self.listed or {}) or (worker is not None and worker.status == "ready")


def parse_workers(answer: Answer) -> tuple[RouterWorker, ...] | None:
    """The workers in an answer of `/workers`, by name; None where it is no such answer."""
    entries = answer.content.get("workers")
    if not answer.ok or not isinstance(entries, list):
        return None
    found = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
            continue
        labels = entry.get("labels")
        told = labels.get(NAME) if isinstance(labels, dict) else None
        name, moved = parts(told) if isinstance(told, str) else (entry["url"], frozenset())
        status, load = str(entry.get("status") or "unknown"), as_int(entry.get("load"))
        models = frozenset(_models(entry))
        found.append(RouterWorker(name, moved, entry["url"], status, load, models))
    return tuple(sorted(found, key=lambda worker: worker.name))


def _models(entry: Mapping[str, object]) -> Iterator[str]:
    models = entry.get("models")
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict) and isinstance(model.get("id"), str):
            yield model["id"]


def parse_list(text: str) -> WorkerList | None:
    """The list of workers as its host tells it; None for text that is no list."""
    content = json_object(text)
    listed, moved = content.get("workers"), content.get("moved")
    if not isinstance(listed, dict) or not isinstance(moved, dict):
        return None
    out = content.get("out")
    return WorkerList(
        _words(listed),
        _words(moved),
        {str(name): frozenset(_told(entry)) for name, entry in out.items()}
        if isinstance(out, dict)
        else {},
        as_int(content.get("revision")) or 0,
        content.get("made") is True,
    )


def _told(entry: object) -> Iterator[str]:
    models = entry.get("models") if isinstance(entry, dict) else None
    yield from (model for model in models if isinstance(model, str)) if models else ()


def _words(entries: Mapping[object, object]) -> dict[str, str]:
    return {str(key): value for key, value in entries.items() if isinstance(value, str)}
