"""From an inventory entry to a host that commands can run on."""

from ddtreectl.errors import UnreachableError
from ddtreectl.hosts.local import LocalHost
from ddtreectl.hosts.protocol import Host
from ddtreectl.inventory.model import HostEntry


def connect(name: str, entry: HostEntry) -> Host:
    """The host `name` as the inventory describes it.

    Raises:
        UnreachableError: there is no way to it.
    """
    if entry.connection == "local":
        return LocalHost(name)
    raise UnreachableError(
        f"host `{name}` ({entry.address}) is reached over SSH, which this version does not do",
        hint="run ddtreectl on the host itself, with `connection: local` in the inventory",
    )
