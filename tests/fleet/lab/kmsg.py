"""The kernel log of a host: a pipe in the place of /dev/kmsg, which its journald reads."""

import fcntl
import os
import time
from pathlib import Path

from tests.fleet.lab.shell import LabError

_F_SETPIPE_SZ = 1031
_CAPACITY = 1 << 20


class KernelLog:
    """The writing end. In packet mode each write is one record, as reads of /dev/kmsg expect.

    Args:
        pipe: the host's /dev/kmsg.
    """

    def __init__(self, pipe: Path) -> None:
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._pipe, _F_SETPIPE_SZ, _CAPACITY)
        fcntl.fcntl(self._pipe, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)
        self._booted = time.monotonic()
        self._sequence = 0

    def write(self, line: str, priority: int = 3) -> None:
        """Add a line; the priorities are those of syslog, 3 is an error.

        Raises:
            LabError: the host does not read its log.
        """
        age = int((time.monotonic() - self._booted) * 1e6)
        record = f"{priority},{self._sequence},{age},-;{line}\n"
        try:
            os.write(self._pipe, record.encode())
        except BlockingIOError:
            raise LabError("the kernel log is full: no journald reads it") from None
        self._sequence += 1

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._pipe)
