"""A host that is reached over SSH. The SSH library is loaded at the first command."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddtreectl.errors import StepError
from ddtreectl.hosts import upload
from ddtreectl.hosts.fence import Fence
from ddtreectl.hosts.protocol import RawResult, Result, about

if TYPE_CHECKING:
    from ddtreectl.hosts.link import Link
    from ddtreectl.hosts.remote_command import Ended, RemoteCommand

READ_DEADLINE = 60.0
WRITE_DEADLINE = 60.0
SLOWEST = 50_000
"""Bytes a second that an upload must make on average."""

NO_SUCH_FILE = 72


class SshHost:
    """A machine at the other end of a connection, which is opened at first use.

    Args:
        name: its name in the inventory.
        find_link: finds the connection; called once.
        fence: the lock that commands need to have, if any.
    """

    def __init__(
        self, name: str, find_link: "Callable[[], Link]", fence: Fence | None = None
    ) -> None:
        self.name = name
        self._fence = fence
        self._find_link = find_link
        self._lock = threading.Lock()
        self._link: Link | None = None

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """See `Host.run`."""
        ended = self._execute(argv, deadline=deadline, stdin=stdin.encode(), env=env)
        return Result(
            tuple(argv),
            ended.status,
            ended.stdout.decode(errors="replace"),
            ended.stderr.decode(errors="replace"),
        )

    def pipe(self, argv: Sequence[str], *, deadline: float, stdin: bytes = b"") -> RawResult:
        """See `Host.pipe`."""
        ended = self._execute(argv, deadline=deadline, stdin=stdin)
        return RawResult(ended.status, ended.stdout, ended.stderr)

    def stream(self, argv: Sequence[str]) -> Iterator[str]:
        """See `Host.stream`."""
        script = ["sh", "-c", 'exec "$@" 2>&1', "ddtreectl-stream", *argv]
        with about(f"`{self.name}`"):
            command = self._command(script, deadline=None)
            rest = b""
            for chunk in command.output():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace") + "\n"
            if rest:
                yield rest.decode(errors="replace")

    def put(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """See `Host.put`."""
        ended = self._execute(
            upload.argv(path, content, mode),
            deadline=WRITE_DEADLINE + len(content) / SLOWEST,
            stdin=content,
        )
        upload.check(ended, path, len(content), self.name)

    def read(self, path: str) -> bytes | None:
        """See `Host.read`."""
        script = f'[ -e "$1" ] || exit {NO_SUCH_FILE}; exec cat -- "$1"'
        ended = self._execute(["sh", "-c", script, "ddtreectl-read", path], deadline=READ_DEADLINE)
        if ended.status == NO_SUCH_FILE:
            return None
        if ended.status != 0:
            raise StepError(
                f"`{path}` on `{self.name}` cannot be read",
                cause=ended.stderr.decode(errors="replace"),
            )
        return ended.stdout

    def fenced(self, fence: Fence) -> "SshHost":
        """See `Host.fenced`; it shares the connection."""
        return SshHost(self.name, self._find_link, fence)

    def reconnect(self) -> None:
        """See `Host.reconnect`; the connection so far stays for those who share it."""
        with self._lock:
            self._link = (self._link or self._find_link()).another()

    def _execute(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> "Ended":
        with about(f"`{self.name}`"):
            ended = self._command(argv, deadline=deadline, stdin=stdin, env=env).finish()
        if self._fence is not None:
            self._fence.check(self.name, ended.status, ended.stderr)
        return ended

    def _command(
        self,
        argv: Sequence[str],
        *,
        deadline: float | None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> "RemoteCommand":
        with self._lock:
            link = self._link = self._link or self._find_link()
        from ddtreectl.hosts.remote_command import RemoteCommand

        return RemoteCommand(
            link,
            self._fence.wrap(argv) if self._fence else argv,
            name=self.name,
            sudo=link.destination.user != "root",
            deadline=deadline,
            stdin=stdin,
            env=env,
            program=argv[0],
        )
