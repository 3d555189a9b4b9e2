"""Messages to the service manager: the `sd_notify` protocol of systemd.

One datagram of `NAME=value` lines to the Unix socket that `$NOTIFY_SOCKET` names (sd_notify(3)).
Where the variable is not set, nobody listens and nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from time import monotonic

log = logging.getLogger(__name__)


class Notifier:
    """Sends states to the service manager; safe to use from any thread."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` of `environment`."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._period = _watchdog_period(environment)
        self._fed_at = -float("inf")

    @property
    def watchdog_seconds(self) -> float | None:
        """Seconds between two signs of life; None where no watchdog looks."""
        return self._period

    def ready(self, status: str) -> None:
        """Say that start-up is done."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """Say that shutdown has begun."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def feed_watchdog(self) -> None:
        """Give a sign of life, if the last one is old enough. To be called when work progressed."""
        now = monotonic()
        if self._period is not None and now - self._fed_at >= self._period:
            self._fed_at = now
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # A full queue must not stop the decode loop: the next message will tell.
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except ConnectionRefusedError:
            # A manager that only follows the start, as some replacements of systemd do, has closed
            # its socket by now.
            log.debug("the service manager no longer listens: `%s`", message)
        except OSError as error:
            log.warning("the service manager can't be told `%s`: %s", message, error)


def _address(name: str) -> str | None:
    """Socket address of `$NOTIFY_SOCKET`: a path, or `@` and the name of an abstract socket."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None


def _watchdog_period(environment: Mapping[str, str]) -> float | None:
    """Half of the time that `WATCHDOG_USEC` allows, as sd_watchdog_enabled(3) recommends."""
    text, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0:
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(text) / 2e6
