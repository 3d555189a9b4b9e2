"""The machine that ddtreectl runs on."""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddtreectl.errors import StepError
from ddtreectl.hosts.fence import Fence
from ddtreectl.hosts.protocol import DeadlineError, RawResult, Result

GRACE = 2.0
"""Seconds that a killed command gets to be reaped; one stuck in the kernel is left behind."""


class LocalHost:
    """This machine. Commands run in their own sessions, out of reach of the terminal's Ctrl-C."""

    def __init__(self, name: str, fence: Fence | None = None) -> None:
        self.name = name
        self._fence = fence

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """See `Host.run`."""
        done = self._execute(argv, deadline=deadline, stdin=stdin.encode(), env=env)
        return Result(
            tuple(argv),
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )

    def pipe(self, argv: Sequence[str], *, deadline: float, stdin: bytes = b"") -> RawResult:
        """See `Host.pipe`."""
        return self._execute(argv, deadline=deadline, stdin=stdin, env=None)

    def _execute(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: bytes,
        env: Mapping[str, str] | None,
    ) -> RawResult:
        try:
            process = subprocess.Popen(
                self._fence.wrap(argv) if self._fence else list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except OSError as error:
            return RawResult(127, b"", f"{argv[0]}: {error.strerror}".encode())
        try:
            out, err = process.communicate(stdin, timeout=deadline)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise DeadlineError(
                f"`{Path(argv[0]).name}` on `{self.name}` did not end within {deadline:g} s"
            ) from None
        except BaseException:
            _kill(process)
            raise
        if self._fence is not None:
            self._fence.check(self.name, process.returncode, err)
        return RawResult(process.returncode, out, err)

    def stream(self, argv: Sequence[str]) -> Iterator[str]:
        """See `Host.stream`."""
        with subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            assert process.stdout is not None  # noqa: S101
            try:
                yield from process.stdout
            finally:
                _kill(process)

    def put(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """See `Host.put`."""
        target = Path(path)
        self._guard()
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise StepError(
                f"`{path}` on `{self.name}` cannot be written", cause=error.strerror or str(error)
            ) from error

    def read(self, path: str) -> bytes | None:
        """See `Host.read`."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StepError(
                f"`{path}` on `{self.name}` cannot be read", cause=error.strerror or str(error)
            ) from error

    def fenced(self, fence: Fence) -> "LocalHost":
        """See `Host.fenced`."""
        return LocalHost(self.name, fence)

    def reconnect(self) -> None:
        """See `Host.reconnect`."""

    def _guard(self) -> None:
        if self._fence is None:
            return
        try:
            held = self._fence.token in Path(self._fence.path).read_text()
        except OSError:
            held = False
        if not held:
            raise self._fence.lost(self.name)


def _kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
