"""The network of a lab, and how a process enters it.

It consists of two bridges in the supervisor's namespace: `front`, where the control side has an
address, and `back`, where it has none. No address of it exists outside of that namespace.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fleet.lab.relay import Slowness
from tests.fleet.lab.shell import LabError, call
from tests.fleet.lab.topology import FRONT, Interface

REPOSITORY = Path(__file__).parents[3]
CONTROL = f"{FRONT}.1"
"""The address of the control side."""

_CLONE_NEWNET = 0x40000000


def nsenter(pid: int) -> list[str]:
    """The beginning of a command that is to run in the network of a process."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


@contextlib.contextmanager
def entered(pid: int) -> Iterator[None]:
    """Have this thread, and threads started meanwhile, in the network of a process.

    Sockets belong to the network in which they were opened, also when they outlive this.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def join(namespace: int) -> None:
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        inside = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            join(inside)
        finally:
            os.close(inside)
        try:
            yield
        finally:
            join(before)
    finally:
        os.close(before)


def create() -> None:
    """Make the bridges, in the namespace of this process."""
    _batch(
        "link set lo up",
        # Addresses of their own: else they have a port's, and change as ports come and go.
        "link add front address 02:fe:01:00:00:01 type bridge",
        "link add back address 02:fe:01:00:01:01 type bridge",
        "link set front up",
        "link set back up",
        f"addr add {CONTROL}/24 dev front",
    )


class Cable:
    """What connects one interface of a host with its bridge, and the faults that it can have."""

    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self.relay: asyncio.subprocess.Process | None = None
        self._blocked = False

    def plug(self, pid: int) -> None:
        """Connect the host whose first process is `pid`."""
        wire = self.interface
        _batch(f"link del {wire.peer}", tolerant=True)  # a dead host's may still be going away
        _batch(
            f"link add {wire.peer} type veth peer name {wire.name} address {wire.mac} netns {pid}",
            f"link set {wire.peer} master {wire.bridge} up",
        )
        self._blocked = False
        self._forget_neighbour()

    def cut(self) -> None:
        """Pull the plug: the host sees that there is no carrier."""
        _batch(f"link set {self.interface.peer} down")
        self._blocked = False  # a port that comes up forwards

    async def blackhole(self) -> None:
        """Lose all frames while the link looks up."""
        await self._end_relay()
        self._forward(False)

    async def slow(self, slowness: Slowness) -> None:
        """Let frames through as slowly as that."""
        await self.heal()
        self._forward(False)
        wire = self.interface
        options = [("rate", slowness.rate), ("delay", slowness.delay)]
        options += [("jitter", slowness.jitter), ("loss", slowness.loss)]
        self.relay = await asyncio.create_subprocess_exec(
            *["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.fleet.lab.relay"],
            *[f"--port={wire.peer}", f"--tap=slow-{wire.peer}", f"--bridge={wire.bridge}"],
            *[f"--{name}={value}" for name, value in options],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
        )
        assert self.relay.stdout is not None
        if await self.relay.stdout.readline() != b"ready\n":
            await self.heal()
            raise LabError(f"the link of {wire.address} cannot be slowed; the log says why")

    async def heal(self) -> None:
        """Be a good cable again."""
        await self._end_relay()
        _batch(f"link set {self.interface.peer} up")
        if self._blocked:
            self._forward(True)
        self._forget_neighbour()

    async def unplug(self) -> None:
        """Take note that the host is gone, and its end of the cable with it."""
        await self._end_relay()

    async def _end_relay(self) -> None:
        if self.relay is not None:
            with contextlib.suppress(ProcessLookupError):
                self.relay.kill()
            await self.relay.wait()
            self.relay = None
            _batch(f"link del slow-{self.interface.peer}", tolerant=True)

    def _forward(self, forward: bool) -> None:
        """Have the bridge drop every frame of this port, or none."""
        state = "3" if forward else "0"  # BR_STATE_FORWARDING, BR_STATE_DISABLED
        call("bridge", "link", "set", "dev", self.interface.peer, "state", state)
        self._blocked = not forward

    def _forget_neighbour(self) -> None:
        # Who asked for a host in vain asks again only a second later.
        address = self.interface.address
        if self.interface.bridge == "front":
            call("ip", "neigh", "flush", "to", address, "dev", "front")


def _batch(*lines: str, tolerant: bool = False) -> None:
    try:
        call("ip", *(["-force"] if tolerant else []), "-batch", "-", stdin="\n".join(lines) + "\n")
    except LabError:
        if not tolerant:
            raise
