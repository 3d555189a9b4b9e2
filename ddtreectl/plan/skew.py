"""What differs between hosts that should be alike. Pure."""

from collections.abc import Iterable, Mapping

from ddtreectl.plan.status import HostStatus, ServiceStatus


def skew(hosts: Iterable[HostStatus]) -> tuple[str, ...]:
    """The differences in words: versions of a backend, and what serves in slots of one name.

    A service that has moved away is none of its slot any more.
    """
    services = [entry for host in hosts for entry in host.services if entry.health != "moved"]
    versions: dict[str, dict[str, list[str]]] = {}
    serving: dict[str, dict[str, list[str]]] = {}
    for service in services:
        if service.backend and service.version:
            _add(versions, service.backend, service.version, service)
        _add(serving, service.slot, _what(service), service)
    return (
        *(f"{backend}: {_listed(each)}" for backend, each in versions.items() if len(each) > 1),
        *(f"slot {slot}: {_listed(each)}" for slot, each in serving.items() if len(each) > 1),
    )


def _what(service: ServiceStatus) -> str:
    """What a slot serves, as far as slots of one name should agree about it."""
    budget = f" budget {service.budget}" if service.mode == "tree" else ""
    return f"{service.backend} {service.mode}{budget} of {service.model}"


def _add(
    table: dict[str, dict[str, list[str]]], key: str, value: str, service: ServiceStatus
) -> None:
    hosts = table.setdefault(key, {}).setdefault(value, [])
    if service.host not in hosts:
        hosts.append(service.host)


def _listed(each: Mapping[str, list[str]]) -> str:
    most_first = sorted(each.items(), key=lambda item: (-len(item[1]), item[0]))
    return "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in most_first)
