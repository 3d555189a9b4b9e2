"""How many connections there are file descriptors for.

Where these run out nothing can be accepted any more, and asyncio says so thousands of times a
second. So connections end before: what comes beyond is answered and closed.
"""

from __future__ import annotations

import resource

WANTED = 65536
"""File descriptors that are asked for; a shell's 1024 are what `select` could take."""

LARGEST_BACKLOG = 2048
RESERVE = 64
"""For everything that is no connection: weights, the log, sockets of libraries."""


def raise_limit() -> None:
    """Have as many file descriptors as are wanted and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def backlog() -> int:
    """Connections that may wait to be accepted; asyncio takes as many at a time."""
    return min(LARGEST_BACKLOG, _limit() // 4)


def most_connections() -> int:
    """Connections that are served at a time, so that all of a backlog can still be accepted."""
    return max(1, _limit() - backlog() - RESERVE)


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft
