"""Who listens on which TCP port."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddtreectl.facts.output import Output

_LISTEN = "0A"
_OWNER = re.compile(r'\("(?P<name>[^"]*)",pid=(?P<pid>\d+)')


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket.

    Attributes:
        port: the port.
        pids: the processes that hold it; empty where the kernel did not tell.
    """

    port: int
    pids: tuple[int, ...]


def command() -> str:
    """List listening sockets with their owners: `ss`, or the tables in /proc without it."""
    return (
        "if command -v ss >/dev/null; then ss -H -l -t -n -p; else "
        "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; "
        "find /proc/[0-9]*/fd -lname 'socket:*' -printf '%h %l\\n' 2>/dev/null; true; fi"
    )


def parse(output: Output) -> list[Listener]:
    """The listeners, by port."""
    lines = output.lines
    pairs = (
        _from_ss(lines) if any(line.startswith("LISTEN") for line in lines) else _from_proc(lines)
    )
    owners: dict[int, set[int]] = {}
    for port, pids in pairs:
        owners.setdefault(port, set()).update(pids)
    return [Listener(port, tuple(sorted(pids))) for port, pids in sorted(owners.items())]


def _from_ss(lines: Sequence[str]) -> list[tuple[int, list[int]]]:
    found = []
    for line in lines:
        columns = line.split()
        if len(columns) >= 4 and columns[0] == "LISTEN":
            port = columns[3].rpartition(":")[2]
            if port.isdecimal():
                found.append((int(port), [int(match["pid"]) for match in _OWNER.finditer(line)]))
    return found


def _from_proc(lines: Sequence[str]) -> list[tuple[int, list[int]]]:
    holders: dict[str, list[int]] = {}
    for line in lines:
        match = re.fullmatch(r"/proc/(\d+)/fd socket:\[(\d+)\]", line.strip())
        if match:
            holders.setdefault(match[2], []).append(int(match[1]))
    found = []
    for line in lines:
        columns = line.split()
        if len(columns) >= 10 and columns[3] == _LISTEN and ":" in columns[1]:
            port = int(columns[1].rpartition(":")[2], 16)
            found.append((port, holders.get(columns[9], [])))
    return found
