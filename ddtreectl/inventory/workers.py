"""The services of a fleet as its router sees them: a name and an address for each slot.

A worker is named HOST/SLOT. One that also stands for slots that were moved to it says so, with
`HOST/SLOT for OTHER/SLOT,...`: the router hands the name out, and a host that comes back asks for
it before it starts what it used to serve (`templates/systemd/slot_guard.py`).
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddtreectl.inventory.names import PlacedError

if TYPE_CHECKING:
    from ddtreectl.inventory.model import HostEntry, Inventory, Slot
    from ddtreectl.inventory.service import ServiceSpec

_FOR = " for "
_KEYED = (
    "a service with an `api_key` tells the router nothing: `behind_router: false`, or leave the "
    "key out and have only the router reach it"
)


@dataclass(frozen=True)
class Worker:
    """The service of a slot, for the router.

    Attributes:
        name: HOST/SLOT.
        url: where the router reaches it.
    """

    name: str
    url: str

    @property
    def endpoint(self) -> tuple[str, str]:
        """Host, without the brackets of IPv6, and port of its address."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host.removeprefix("[").removesuffix("]"), port


def slot_id(host: str, slot: str) -> str:
    """The name of the worker that a slot is."""
    return f"{host}/{slot}"


def with_moved(name: str, moved: Iterable[str]) -> str:
    """The name of a worker that stands for the slots `moved` as well."""
    others = ",".join(sorted(moved))
    return f"{name}{_FOR}{others}" if others else name


def parts(name: str) -> tuple[str, frozenset[str]]:
    """A worker's own slot, and those that were moved to it."""
    own, _, others = name.partition(_FOR)
    return own, frozenset(other for other in others.split(",") if other)


def workers(inventory: "Inventory") -> dict[str, Worker]:
    """All workers of the router, by name; none where there is no router.

    Raises:
        PlacedError: a slot listens where the router cannot reach it, or wants a key of it.
    """
    if inventory.router is None:
        return {}
    found = {}
    for host_name, host in inventory.hosts.items():
        for slot_name, slot in host.slots.items():
            if slot.behind_router:
                name = slot_id(host_name, slot_name)
                place = ("hosts", host_name, "slots", slot_name)
                if inventory.settings(slot).api_key:
                    raise PlacedError(_KEYED, *place)
                try:
                    found[name] = Worker(name, _url(inventory, host_name, slot))
                except ValueError as error:
                    raise PlacedError(str(error), *place) from None
    return found


def out_of_reach(worker: Worker, service: "ServiceSpec") -> str:
    """Why the router gets no answer from a service at the worker's address; empty if it may.

    A service goes on as it was deployed, when its slot has another address in the inventory since;
    and a rollback brings one back as it was.
    """
    if service.api_key:
        return "it wants an `api_key`, and tells the router nothing without"
    host, port = worker.endpoint
    if str(service.port) != port:
        return f"it listens on port {service.port}, and the router asks port {port}"
    listens = ipaddress.ip_address(service.address)
    try:
        asked = ipaddress.ip_address(host)
    except ValueError:  # a name: only the router's host can tell what it stands for
        return f"it listens on {listens} alone" if _is_loopback(listens) else ""
    if listens.is_unspecified:
        if listens.version == 4 and asked.version == 6:
            return f"it listens on {listens}, which is IPv4 alone, and the router asks {asked}"
        return ""
    if listens == asked:
        return ""
    return f"it listens on {listens} alone, and the router asks {asked}"


def router_urls(inventory: "Inventory") -> dict[str, str]:
    """Where each host reaches the router; hosts that cannot are left out."""
    router = inventory.router
    if router is None:
        return {}
    ip = ipaddress.ip_address(router.address)
    found = {}
    where: str | None
    for name in inventory.hosts:
        if name == router.host:
            where = "127.0.0.1" if ip.is_unspecified else str(ip)
        elif _is_loopback(ip):
            continue
        else:
            where = inventory.hosts[router.host].address if ip.is_unspecified else str(ip)
        if where:
            found[name] = _http(where, router.port)
    return found


def _is_loopback(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is reached from its own host alone; also one of IPv4 written as IPv6."""
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def _url(inventory: "Inventory", host_name: str, slot: "Slot") -> str:
    """Where a slot is reached from the router's host.

    Raises:
        ValueError: nowhere.
    """
    assert inventory.router is not None  # noqa: S101 - there are no workers without
    ip = ipaddress.ip_address(slot.address)
    host, routers = inventory.hosts[host_name], inventory.hosts[inventory.router.host]
    if host_name == inventory.router.host:
        where = "127.0.0.1" if ip.is_unspecified else str(ip)
    elif _is_loopback(ip):
        raise ValueError(
            f"the slot listens on {ip} alone, where the router on another host cannot reach it: "
            "give it an `address`, or `behind_router: false`"
        )
    elif not ip.is_unspecified:
        where = str(ip)
    elif _is_here(host) and not _is_here(routers):
        leads = f"`{host.address}` is its own host there" if host.address else "it has no `address`"
        raise ValueError(
            f"the router on another host cannot reach `{host_name}`, for {leads}: give the slot an "
            "`address` of the network, or `behind_router: false`"
        )
    else:
        where = host.address or "127.0.0.1"
    return _http(where, slot.port)


def _is_here(host: "HostEntry") -> bool:
    """Whether the address of a host leads whoever asks it to his own machine."""
    if host.address is None:
        return True
    try:
        return _is_loopback(ipaddress.ip_address(host.address))
    except ValueError:
        return host.address == "localhost"


def _http(where: str, port: int) -> str:
    return f"http://[{where}]:{port}" if ":" in where else f"http://{where}:{port}"
