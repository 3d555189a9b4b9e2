"""Who is working, and when it is."""

import getpass
import os
import socket
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import join


@dataclass(frozen=True)
class Operator:
    """The person and process behind a command.

    Attributes:
        user: the login name; behind sudo, the one who called it.
        host: the machine that ddtreectl runs on.
        boot: the boot id of that machine.
        pid: the process.
        ticks: its start time in clock ticks since boot.
        command: what was typed.
    """

    user: str
    host: str
    boot: str
    pid: int
    ticks: int
    command: str

    def __str__(self) -> str:
        """The form in records."""
        return f"{self.user}@{self.host}"


def current() -> Operator:
    """The operator of this process."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    boot = Path("/proc/sys/kernel/random/boot_id")
    words = ["ddtreectl", *sys.argv[1:]]
    return Operator(
        user=user,
        host=socket.gethostname(),
        boot=boot.read_text().strip() if boot.exists() else "",
        pid=os.getpid(),
        ticks=start_ticks(os.getpid()) or 0,
        command=join(words)[:500],
    )


def start_ticks(pid: int) -> int | None:
    """When a process of this machine started, or None if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def now() -> str:
    """The time, in ISO 8601 with microseconds, in UTC; sorts as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
