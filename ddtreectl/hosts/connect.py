"""From an inventory entry to a host that commands can run on."""

import threading
from functools import cache
from typing import TYPE_CHECKING

from ddtreectl.hosts.local import LocalHost
from ddtreectl.hosts.protocol import Host
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.ssh import SshSettings

if TYPE_CHECKING:
    from ddtreectl.hosts.links import Links


def connect(name: str, entry: HostEntry, settings: SshSettings) -> Host:
    """The host `name` as the inventory describes it. A connection is made at its first use."""
    if entry.connection == "local":
        return LocalHost(name)
    return _links().host(name, entry, settings)


_loading = threading.Lock()


def _links() -> "Links":
    """The connections of this process; the SSH library is loaded only where it is needed."""
    with _loading:
        return _loaded()


@cache
def _loaded() -> "Links":
    from ddtreectl.hosts.links import Links

    return Links()
