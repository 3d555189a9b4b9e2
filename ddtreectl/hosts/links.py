"""All connections of one process: hosts behind the same bastion share the connection to it."""

import threading
from functools import partial

from ddtreectl.errors import UsageError
from ddtreectl.hosts.destination import Destination, resolve, resolve_hop
from ddtreectl.hosts.link import Link
from ddtreectl.hosts.ssh import SshHost
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.ssh import SshSettings

MOST_HOPS = 8


class Links:
    """Connections by where they go to and what they go through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[tuple[str, int, str, Link | None], Link] = {}

    def host(self, name: str, entry: HostEntry, settings: SshSettings) -> SshHost:
        """A host of the inventory."""
        return SshHost(name, partial(self._find, entry.address or name, settings, entry.user))

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            for link in self._links.values():
                link.close()

    def _find(self, address: str, settings: SshSettings, user: str | None) -> Link:
        return self.link(resolve(address, settings, user), settings)

    def link(self, destination: Destination, settings: SshSettings, depth: int = 0) -> Link:
        """The connection to a destination, which `depth` bastions lead to another by."""
        return self._through(self._bastion(destination, settings, depth), destination, settings)

    def _bastion(self, destination: Destination, settings: SshSettings, depth: int) -> Link | None:
        """The connection to the last bastion on the way.

        Raises:
            UsageError: the way leads in a circle.
        """
        if destination.jump is None:
            return None
        if depth == MOST_HOPS:
            raise UsageError(
                f"the way to `{destination.asked}` does not end after {MOST_HOPS} bastions",
                hint="does `ProxyJump` of the SSH configuration lead in a circle?",
            )
        via: Link | None = None
        hops = destination.jump.split(",")
        for number, hop in enumerate(hops):
            resolved = resolve_hop(hop, settings)
            if (resolved.hostname, resolved.port) == (destination.hostname, destination.port):
                continue  # as in ssh, a bastion is not reached through itself
            if number == 0:
                via = self.link(resolved, settings, depth + 1)
            else:
                via = self._through(via, resolved, settings)
        return via

    def _through(self, via: Link | None, hop: Destination, settings: SshSettings) -> Link:
        key = (hop.hostname, hop.port, hop.user, via)
        with self._lock:
            accept_new = settings.host_keys == "accept-new"
            return self._links.setdefault(key, Link(hop, via, accept_new=accept_new))
