"""A slow link: frames between a host and its bridge come late, slowly or not at all.

Run as a process of its own in the control network namespace. It works on every kernel that has
AF_PACKET sockets and tap devices; the kernel's own netem often is not built.

The bridge drops what comes from the host's port (`--port`), and a tap device (`--tap`) takes its
place there. Frames are large where the kernel segments late, so both sides speak virtio-net
headers, which say how to cut a frame.
"""

import argparse
import contextlib
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from tests.fleet.lab.shell import call

FRAME = 70_000
"""Bytes that the largest unsegmented frame and its header fit in."""

BACKLOG = 1.0
"""Seconds of sending that may queue up in one direction; what comes then is lost."""

# linux/if_tun.h, linux/if_packet.h, asm-generic/socket.h
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 1, 2, 4
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_RCVBUFFORCE = 33
_ETH_P_ALL = 3


@dataclass(frozen=True)
class Slowness:
    """What is wrong with a link, in each direction.

    Attributes:
        rate: bits per second; no limit if 0.
        delay: seconds that a frame is on its way.
        jitter: seconds by which that varies at random, without changing the order.
        loss: share of the frames that never arrive, 0 to 1.
    """

    rate: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0


@dataclass
class Direction:
    """When frames of one direction arrive."""

    slowness: Slowness
    free: float = 0.0
    last: float = field(default=0.0)

    def arrival(self, now: float, size: int) -> float | None:
        """The time at which a frame sent now arrives, or None if it is lost."""
        slow = self.slowness
        start = max(self.free, now)
        if random.random() < slow.loss or start - now > BACKLOG:
            return None
        self.free = start + (size * 8 / slow.rate if slow.rate else 0.0)
        variation = random.uniform(-slow.jitter, slow.jitter)
        self.last = max(self.last, self.free + max(0.0, slow.delay + variation))
        return self.last


def open_tap(name: str) -> int:
    """Make a tap device that takes large frames, and return its file descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
    return tap


def open_port(name: str) -> socket.socket:
    """A socket that receives what a host sends, and sends what it receives."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
    port.bind((name, _ETH_P_ALL))
    port.setblocking(False)
    return port


def carry(port: socket.socket, tap: int, slowness: Slowness) -> None:
    """Carry frames both ways until the process is ended."""
    to_bridge, to_host = Direction(slowness), Direction(slowness)
    underway: list[tuple[float, int, bool, bytes]] = []
    count = 0
    while True:
        wait = max(0.0, underway[0][0] - time.monotonic()) if underway else None
        readable, _, _ = select.select([port.fileno(), tap], [], [], wait)
        for source in readable:
            from_host = source != tap
            direction = to_bridge if from_host else to_host
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    frame = port.recv(FRAME) if from_host else os.read(tap, FRAME)
                    at = direction.arrival(time.monotonic(), len(frame))
                    if at is not None:
                        count += 1
                        heapq.heappush(underway, (at, count, from_host, frame))
        while underway and underway[0][0] <= time.monotonic():
            _, _, from_host, frame = heapq.heappop(underway)
            with contextlib.suppress(OSError):  # an interface that is down: the frame is lost
                if from_host:
                    os.write(tap, frame)
                else:
                    port.send(frame)


def main() -> None:
    """Set the link up, say so with a line on stdout, and carry."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--port", "--tap", "--bridge"):
        parser.add_argument(name, required=True)
    for name in ("--rate", "--delay", "--jitter", "--loss"):
        parser.add_argument(name, type=float, default=0.0)
    options = parser.parse_args()
    tap = open_tap(options.tap)
    call("ip", "link", "set", options.tap, "master", options.bridge, "up")
    port = open_port(options.port)
    print("ready", flush=True)
    carry(port, tap, Slowness(options.rate, options.delay, options.jitter, options.loss))


if __name__ == "__main__":
    main()
