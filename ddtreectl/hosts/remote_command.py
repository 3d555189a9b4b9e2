"""One command on the other side of a connection: its words, its streams, its end.

The command is bounded on the host by `timeout`, so that one whose operator is gone ends too, and a
little later here, for a host that does not even do that. Before the command starts, its process id
comes back on stderr: without it, what failed was the way to the command (sudo, the login shell) and
not the command.
"""

import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import join

from paramiko.ssh_exception import SSHException

from ddtreectl.errors import DdtreectlError, StepError
from ddtreectl.hosts.link import Link
from ddtreectl.hosts.protocol import DeadlineError

KILL_AFTER = 5
"""Seconds between the request to end and the kill, on the host."""

GRACE = 10.0
"""Seconds that the host's own bound may be late, before it counts as not kept."""

LINGER = 2.0
"""Seconds that output may still come after the command has ended, from children it left."""

CHUNK = 1 << 15

_BEGIN = (
    'echo "ddtreectl-pid $$" >&2; '
    "PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH; "
    'exec "$@"'
)
_PID = re.compile(rb"^ddtreectl-pid (\d+)\n", re.MULTILINE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SudoError(StepError):
    """The user may not become root on the host."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    stdout: bytes
    stderr: bytes


def command_line(
    argv: Sequence[str],
    *,
    sudo: bool,
    deadline: float | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """What the login shell of the host is to run: `argv`, as root, for `deadline` seconds at most.

    Raises:
        ValueError: a variable of `env` has a name that is none.
    """
    for name in env or {}:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"`{name}` is not the name of a variable")
    return join(
        [
            *(["sudo", "-n", "--"] if sudo else []),
            *["sh", "-c", _BEGIN, "ddtreectl"],
            *(["env", *(f"{k}={v}" for k, v in env.items())] if env else []),
            *(["timeout", "-k", str(KILL_AFTER), f"{deadline:.3f}"] if deadline else []),
            *argv,
        ]
    )


class RemoteCommand:
    """A command in progress.

    Args:
        link: the connection to its host.
        argv: the command.
        name: the host, for messages.
        sudo: whether it needs sudo to be root.
        deadline: seconds that it may take; None for one that goes on until it is closed.
        stdin: what it reads.
        env: variables for it.
        program: its name, for messages.
    """

    def __init__(
        self,
        link: Link,
        argv: Sequence[str],
        *,
        name: str,
        sudo: bool,
        deadline: float | None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        program: str = "",
    ) -> None:
        self._link = link
        self._name = name
        self._program = (program or argv[0]).rpartition("/")[2]
        self._sudo = sudo
        self._deadline = deadline
        self._stdin = memoryview(stdin)
        self._errors = b""
        self._channel = link.open_session()
        self._began = self._heard = time.monotonic()
        try:
            with link.bounded():
                self._channel.exec_command(
                    command_line(argv, sudo=sudo, deadline=deadline, env=env)
                )
        except (SSHException, EOFError, OSError) as error:
            self._channel.close()
            raise link.lost(f"`{self._program}` was started") from error

    def finish(self) -> Ended:
        """Wait until it has ended.

        Raises:
            DeadlineError: it takes too long.
            SudoError: the user may not become root.
            UnreachableError: the host has stopped answering.
        """
        stdout = b"".join(self.output())
        status = self._status(stdout)
        took = time.monotonic() - self._began
        if self._deadline and status in {124, 137} and took >= self._deadline:
            raise self._too_long()
        return Ended(status, stdout, _PID.sub(b"", self._errors, count=1))

    def output(self) -> Iterator[bytes]:
        """What it writes to stdout, as it comes. A caller who stops early ends the command."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        ended_at = 0.0
        complete = False
        try:
            while True:
                moved = self._send()
                while self._channel.recv_ready():
                    moved = True
                    yield self._channel.recv(CHUNK)
                while self._channel.recv_stderr_ready():
                    moved = True
                    self._errors += self._channel.recv_stderr(CHUNK)
                now = time.monotonic()
                if moved:
                    self._heard = now
                    continue
                if self._channel.closed:
                    break
                if self._channel.exit_status_ready():
                    ended_at = ended_at or now
                    if self._channel.eof_received or now - ended_at > LINGER:
                        break
                self._still_there(now)
                if self._channel.eof_received:
                    self._channel.status_event.wait(0.25)
                else:
                    # Room to send wakes no poll: look again soon while there is more to send.
                    poll.poll(20 if self._stdin else 250)
            complete = True
        finally:
            if not complete:
                self._abandon()
            self._channel.close()

    def _send(self) -> bool:
        """Pass on as much of stdin as there is room for. Returns whether anything was."""
        sent = False
        try:
            while self._stdin and self._channel.send_ready():
                count = self._channel.send(bytes(self._stdin[:CHUNK]))
                self._stdin = self._stdin[count:]
                sent = True
                if count == 0:
                    self._stdin = memoryview(b"")
            if not self._stdin and not self._channel.eof_sent:
                self._channel.shutdown_write()
        except (SSHException, EOFError, OSError):
            self._stdin = memoryview(b"")  # it reads no more; how it ended is told by its status
        return sent

    def _still_there(self, now: float) -> None:
        late = self._deadline is not None and now - self._began > (
            self._deadline + KILL_AFTER + GRACE
        )
        if not late and now - self._heard < self._link.destination.patience:
            return
        if not self._link.alive():
            raise self._link.lost(f"`{self._program}` ran")
        if late:
            raise self._too_long()
        self._heard = time.monotonic()

    def _status(self, stdout: bytes) -> int:
        """The exit status.

        Raises:
            UnreachableError: the connection ended first.
            SudoError: sudo said no.
            DdtreectlError: something else was in the way.
        """
        status = self._channel.exit_status
        if status < 0:
            raise self._link.lost(f"`{self._program}` ran")
        if _PID.search(self._errors) is None:
            raise self._not_begun((self._errors + stdout).decode(errors="replace").strip())
        return status

    def _not_begun(self, said: str) -> DdtreectlError:
        user = self._link.destination.user
        if self._sudo and "sudo" in said:
            return SudoError(
                f"`{user}` may not become root on `{self._name}` without a password",
                cause=said,
                hint=f"as root, `visudo -f /etc/sudoers.d/ddtreectl` with the line: "
                f"{user} ALL=(root) NOPASSWD: ALL",
            )
        return StepError(f"`{user}` cannot run commands on `{self._name}`", cause=said)

    def _too_long(self) -> DeadlineError:
        return DeadlineError(
            f"`{self._program}` on `{self._name}` did not end within {self._deadline:g} s"
        )

    def _awaited_pid(self) -> re.Match[bytes] | None:
        """The process id that the host says first, on a stream that may lag behind the other."""
        end = time.monotonic() + LINGER
        while (match := _PID.search(self._errors)) is None and time.monotonic() < end:
            while self._channel.recv_stderr_ready():
                self._errors += self._channel.recv_stderr(CHUNK)
            if self._channel.closed or self._channel.status_event.wait(0.02):
                break
        return match

    def _abandon(self) -> None:
        """End the command on the host, as far as the host still answers."""
        match = self._awaited_pid()
        if match is None or self._channel.closed:
            return
        kill = ["kill", "-TERM", match[1].decode()]
        try:
            channel = self._link.open_session()
            with self._link.bounded():
                channel.exec_command(join([*(["sudo", "-n", "--"] if self._sudo else []), *kill]))
            channel.status_event.wait(KILL_AFTER)
            channel.close()
        except (DdtreectlError, SSHException, EOFError, OSError):
            return  # `timeout` on the host ends it
