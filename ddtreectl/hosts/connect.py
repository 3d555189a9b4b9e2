"""From an inventory entry to a host that commands can run on.

What `ssh -G` says of a host is asked before the SSH library is loaded: while one of many threads
loads it, the others wait for processes, and not for each other.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from ddtreectl.hosts.destination import resolve
from ddtreectl.hosts.local import LocalHost
from ddtreectl.hosts.protocol import Host
from ddtreectl.hosts.ssh import SshHost
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.ssh import SshSettings

if TYPE_CHECKING:
    from ddtreectl.hosts.link import Link
    from ddtreectl.hosts.links import Links


def connect(name: str, entry: HostEntry, settings: SshSettings) -> Host:
    """The host `name` as the inventory describes it. A connection is made at its first use."""
    if entry.connection == "local":
        return LocalHost(name)
    return SshHost(name, partial(_link, entry.address or name, settings, entry.user))


def _link(address: str, settings: SshSettings, user: str | None) -> "Link":
    destination = resolve(address, settings, user)
    return _links().link(destination, settings)


_loading = threading.Lock()


def _links() -> "Links":
    """The connections of this process; the SSH library is loaded only where it is needed."""
    with _loading:
        return _loaded()


@cache
def _loaded() -> "Links":
    with _without("invoke"):
        from ddtreectl.hosts.links import Links

    return Links()


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Have imports of an optional module fail in the block.

    Paramiko tries to import invoke for `Match exec` of SSH configurations, which `ssh -G` reads
    here; with it come asyncio and unittest.mock, a fifth of what a command takes to start.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
