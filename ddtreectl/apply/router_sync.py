"""Has the router know what serves: for what could not be told to it at the time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddtreectl.apply import router_list
from ddtreectl.apply.router import Router
from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.inventory.workers import Worker, out_of_reach
from ddtreectl.plan import wish

Serving = ServiceSpec | bool | None


@dataclass(frozen=True)
class Synced:
    """What `sync` found and did.

    Attributes:
        put_in: workers that serve and were not on the list.
        taken_out: workers that were on it and do not serve.
        kept: those that were as they should be.
        unknown: those whose host does not answer, or that are in the middle of a swap; they are
            left as they were.
        moved: those for which another slot stands.
        out_of_reach: those that serve where the router cannot reach them, or let it ask them
            nothing, with the reason; they are left as they were.
    """

    put_in: tuple[str, ...] = ()
    taken_out: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    out_of_reach: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the list is what serves."""
        return not self.unknown and not self.out_of_reach


def sync(router: Router, serving: Sequence[tuple[str, Serving]]) -> Synced:
    """Have the router's list be what serves.

    Args:
        router: the router.
        serving: whether each worker serves, by its name; None where nobody can tell; the service
            itself where one does.

    Raises:
        DdtreectlError: the list cannot be changed.
    """
    kept = router_list.change(router.session, "show")
    listed, moved = kept.listed, kept.moved
    found: dict[str, list[str]] = {
        key: [] for key in ("put_in", "taken_out", "kept", "unknown", "moved")
    }
    missed: dict[str, str] = {}
    for name, serves in serving:
        worker = router.workers[name]
        if name in moved:
            found["moved"].append(name)
        elif serves is None:
            found["unknown"].append(name)
        elif isinstance(serves, ServiceSpec) and (why := out_of_reach(worker, serves)):
            missed[name] = why
        elif serves and listed.get(name) != worker.url:
            router_list.change(router.session, "add", name, worker.url)
            found["put_in"].append(name)
        elif not serves and name in listed:
            router_list.change(router.session, "remove", name)
            found["taken_out"].append(name)
        else:
            found["kept"].append(name)
    for name in listed.keys() - router.workers.keys():  # of a slot that the inventory has no more
        router_list.change(router.session, "remove", name)
        found["taken_out"].append(name)
    told = {key: tuple(names) for key, names in found.items()}
    return Synced(**told, out_of_reach=missed)


def served(worker: Worker, place: Place, facts: HostFacts) -> Serving:
    """Whether a worker serves, by its host's facts; the service, if the router can't reach it."""
    now = wish.serving(place, facts)
    if now and now.service and now.status == "good" and out_of_reach(worker, now.service):
        return now.service  # it is not asked where it listens
    return wish.serves(place, facts)
