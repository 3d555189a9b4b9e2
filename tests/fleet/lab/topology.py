"""What a lab consists of: hosts, their addresses, and which of them lie behind a bastion."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

FRONT = "10.77.0"
"""Network that the control side is in, as its first three octets."""

BACK = "10.77.1"
"""Network behind the bastions, which the control side has no address in."""


@dataclass(frozen=True)
class HostSpec:
    """One host.

    Attributes:
        name: its host name.
        gpus: how many GPUs its driver finds; without any there is no driver either.
        ssh_port: where its sshd listens.
        behind: the host through which alone it can be reached; itself in the front network.
        disk: size of its disk, as `mount` takes it.
        shared: folders of this machine that it sees read-only, by the path that they have on it.
    """

    name: str
    gpus: int = 2
    ssh_port: int = 22
    behind: str | None = None
    disk: str = "512M"
    shared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Interface:
    """A network interface of a host.

    Attributes:
        name: its name in the host.
        bridge: the bridge that its other end is plugged into.
        peer: the name of that other end.
        address: in the bridge's network, which is a /24.
        mac: the same at every boot, so that neighbours find a rebooted host at once.
    """

    name: str
    bridge: str
    peer: str
    address: str
    mac: str


@dataclass(frozen=True)
class Topology:
    """The hosts of a lab.

    Raises:
        ValueError: two hosts share a name, or one is behind a host that is not there.
    """

    hosts: tuple[HostSpec, ...]

    def __post_init__(self) -> None:
        front = {host.name for host in self.hosts if host.behind is None}
        if len({host.name for host in self.hosts}) != len(self.hosts):
            raise ValueError("two hosts have the same name")
        if len(self.hosts) > 200:
            raise ValueError("a network holds 200 hosts")
        for host in self.hosts:
            if host.behind is not None and host.behind not in front:
                raise ValueError(f"`{host.name}` is behind `{host.behind}`, which is not in front")

    @classmethod
    def of(cls, hosts: int | Sequence[HostSpec]) -> Self:
        """The hosts `h1` … `hN`, or those that are given."""
        if isinstance(hosts, int):
            return cls(tuple(HostSpec(f"h{number}") for number in range(1, hosts + 1)))
        return cls(tuple(hosts))

    def interfaces(self, name: str) -> list[Interface]:
        """The interfaces of a host; the first is the one that ssh reaches it by."""
        number, host = self._find(name)
        if host.behind is not None:
            return [self._interface(number, "eth0", "back")]
        is_bastion = any(other.behind == name for other in self.hosts)
        front = self._interface(number, "eth0", "front")
        return [front, self._interface(number, "eth1", "back")] if is_bastion else [front]

    def address(self, name: str) -> str:
        """The address that ssh reaches a host by."""
        return self.interfaces(name)[0].address

    def bastion_address(self, name: str) -> str | None:
        """Where a host that is behind a bastion finds it."""
        _, host = self._find(name)
        return self.interfaces(host.behind)[1].address if host.behind else None

    def to_json(self) -> list[dict[str, Any]]:
        """The hosts as plain values."""
        return [asdict(host) for host in self.hosts]

    @classmethod
    def from_json(cls, hosts: Sequence[Mapping[str, Any]]) -> Self:
        """The inverse of `to_json`."""
        return cls(tuple(HostSpec(**host) for host in hosts))

    def _find(self, name: str) -> tuple[int, HostSpec]:
        for number, host in enumerate(self.hosts, 1):
            if host.name == name:
                return number, host
        raise KeyError(name)

    def _interface(self, number: int, name: str, bridge: str) -> Interface:
        network, octet = (FRONT, 0) if bridge == "front" else (BACK, 1)
        return Interface(
            name=name,
            bridge=bridge,
            peer=f"{bridge}{number}",
            address=f"{network}.{10 + number}",
            mac=f"02:fe:00:00:{octet:02x}:{number:02x}",
        )
