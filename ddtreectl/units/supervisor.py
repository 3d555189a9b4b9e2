"""The commands that run units: systemd's, or docker-systemctl-replacement's where none runs.

Both read the same unit files. The replacement has no daemon: it knows no InvocationID, restarts
nothing, writes no time stamps, and its `start` waits for READY=1 in the foreground.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from shlex import join, quote
from typing import Protocol

from ddtreectl.facts.systemd import PROPERTIES


class Supervisor(Protocol):
    """Builds the commands of one kind of service manager."""

    def show(self, units: Sequence[str]) -> str:
        """Print the properties of `units`; shell text."""
        ...

    def start(self, unit: str, timeout: int) -> list[str]:
        """Begin to start a unit; prints the process id of the job, if that runs apart."""
        ...

    def stop(self, unit: str) -> list[str]:
        """Stop a unit and wait for it."""
        ...

    def reload(self) -> list[str]:
        """Read the unit files again."""
        ...

    def enable(self, unit: str) -> list[str]:
        """Start the unit at boot."""
        ...

    def disable(self, units: Sequence[str]) -> list[str]:
        """Do not start the units at boot."""
        ...

    def reset_failed(self, unit: str) -> list[str]:
        """Forget failures, so that the start limit does not refuse the next start."""
        ...

    def mark(self, unit: str) -> list[str]:
        """Print where the journal of a unit ends now."""
        ...

    def journal_since(self, unit: str, mark: str, invocation: str | None, lines: int) -> list[str]:
        """Print what one run of a unit wrote: the last `lines` lines after `mark`."""
        ...

    def journal(self, unit: str, lines: int, *, follow: bool) -> list[str]:
        """Print the end of a unit's journal, and go on printing where `follow` is set."""
        ...


@dataclass(frozen=True)
class Systemd:
    """The real one."""

    SHOW = ("systemctl", "show", "--no-pager", f"--property={','.join(PROPERTIES)}", "--")
    """The command that shows units, but for their names."""

    def show(self, units: Sequence[str]) -> str:
        """See `Supervisor`."""
        return join([*self.SHOW, *units])

    def start(self, unit: str, timeout: int) -> list[str]:
        """See `Supervisor`; the unit's own TimeoutStartSec bounds it."""
        del timeout
        return ["systemctl", "start", "--no-block", unit]

    def stop(self, unit: str) -> list[str]:
        """See `Supervisor`."""
        return ["systemctl", "stop", unit]

    def reload(self) -> list[str]:
        """See `Supervisor`."""
        return ["systemctl", "daemon-reload"]

    def enable(self, unit: str) -> list[str]:
        """See `Supervisor`."""
        return ["systemctl", "enable", "--quiet", unit]

    def disable(self, units: Sequence[str]) -> list[str]:
        """See `Supervisor`."""
        return ["systemctl", "disable", "--quiet", *units]

    def reset_failed(self, unit: str) -> list[str]:
        """See `Supervisor`; a unit that has not failed is no error."""
        return ["sh", "-c", f"systemctl reset-failed {quote(unit)} 2>/dev/null; true"]

    def mark(self, unit: str) -> list[str]:
        """See `Supervisor`."""
        del unit
        return ["date", "+@%s"]

    def journal_since(self, unit: str, mark: str, invocation: str | None, lines: int) -> list[str]:
        """See `Supervisor`; without an invocation, everything since `mark`."""
        which = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
        since = which if invocation else ["--since", mark, "-u", unit]
        return ["journalctl", "--no-pager", "-o", "cat", "-n", str(lines), *since]

    def journal(self, unit: str, lines: int, *, follow: bool) -> list[str]:
        """See `Supervisor`."""
        more = ["-f"] if follow else []
        return ["journalctl", "--no-pager", "-o", "short-iso", "-u", unit, "-n", str(lines), *more]


LONGEST_ROOT = 40
"""Characters of a root below which a unit's socket keeps within the 108 of an address."""


def socket_folder(root: str) -> str:
    """Where the sockets of units are whose root is too long for them to be below it."""
    return f"/run/ddtree-{sha256(root.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Replacement:
    """docker-systemctl-replacement.

    Attributes:
        python: an interpreter that has it installed.
        root: a folder that stands for `/` for units, logs and run-time state, or nothing.
    """

    python: str
    root: str = ""

    def _command(self, *words: str) -> list[str]:
        root = [f"--root={self.root}"] if self.root else []
        # A clean environment: it would hand the operator's down to the service.
        clean = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        home = ["HOME=/root", "LANG=C.UTF-8"]
        if len(self.root) > LONGEST_ROOT:
            # The socket on which a service says that it is ready has no room below such a root, and
            # goes where temporary files are, under the unit's name: not where others have theirs.
            home.append(f"TMPDIR={socket_folder(self.root)}")
        return [*clean, *home, self.python, "-m", "systemctl2.systemctl", *root, *words]

    def show(self, units: Sequence[str]) -> str:
        """See `Supervisor`."""
        return join(self._command("show", "--all", *units))

    def start(self, unit: str, timeout: int) -> list[str]:
        """See `Supervisor`; the job goes on in a session of its own, as systemd's would."""
        job = join(self._command(f"--maxtimeout={timeout}", "start", unit))
        return ["sh", "-c", f"setsid {job} >/dev/null 2>&1 </dev/null & echo $!"]

    def stop(self, unit: str) -> list[str]:
        """See `Supervisor`."""
        return self._command("stop", unit)

    def reload(self) -> list[str]:
        """See `Supervisor`; it reads the files at each command."""
        return ["true"]

    def enable(self, unit: str) -> list[str]:
        """See `Supervisor`."""
        return self._command("enable", unit)

    def disable(self, units: Sequence[str]) -> list[str]:
        """See `Supervisor`."""
        return self._command("disable", *units)

    def reset_failed(self, unit: str) -> list[str]:
        """See `Supervisor`."""
        return self._command("reset-failed", unit)

    def _log(self, unit: str) -> str:
        return f"{self.root}/var/log/journal/{unit}.log"

    def mark(self, unit: str) -> list[str]:
        """See `Supervisor`; the size of the log file."""
        log = quote(self._log(unit))
        return ["sh", "-c", f"stat -c %s {log} 2>/dev/null || echo 0"]

    def journal_since(self, unit: str, mark: str, invocation: str | None, lines: int) -> list[str]:
        """See `Supervisor`."""
        del invocation
        log = quote(self._log(unit))
        start = int(mark) + 1 if mark.isdecimal() else 1
        return ["sh", "-c", f"tail -c +{start} {log} 2>/dev/null | tail -n {lines}"]

    def journal(self, unit: str, lines: int, *, follow: bool) -> list[str]:
        """See `Supervisor`."""
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), self._log(unit)]
