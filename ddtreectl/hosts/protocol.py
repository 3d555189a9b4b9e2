"""What every host can do. Everything above this layer is the same for each kind of host."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ddtreectl.errors import StepError, UnreachableError
from ddtreectl.hosts.fence import Fence

LONGEST_WORD = 120
"""Characters of a word that a reader may still want to see."""


@dataclass(frozen=True)
class Result:
    """What a command said.

    Attributes:
        argv: the command.
        returncode: its exit status; negative for a signal.
        stdout: what it wrote, decoded leniently.
        stderr: likewise.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether the command succeeded."""
        return self.returncode == 0

    @property
    def said(self) -> str:
        """What to show of a failure: its errors, else its output."""
        return (self.stderr.strip() or self.stdout.strip()) or f"exit status {self.returncode}"


@dataclass(frozen=True)
class RawResult:
    """What a command said, byte for byte.

    Attributes:
        returncode: its exit status; negative for a signal.
        stdout: what it wrote.
        stderr: likewise.
    """

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        """What to show of a failure."""
        return self.stderr.decode(errors="replace").strip() or f"exit status {self.returncode}"


class DeadlineError(StepError):
    """A command ran past its deadline and was given up."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Say in an `UnreachableError` of the block what it is about."""
    try:
        yield
    except UnreachableError as error:
        raise type(error)(f"{what}: {error.message}", cause=error.cause, hint=error.hint) from error


class Host(Protocol):
    """A machine that commands run on, as root or through sudo.

    No method waits longer than its deadline. A host that does not answer raises
    `UnreachableError`, which is an outcome of its own and never a failed command.
    """

    name: str

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run `argv` to its end.

        Args:
            argv: program and arguments, passed on without a shell.
            deadline: seconds after which the command and its children are killed.
            stdin: what the command reads.
            env: variables on top of the host's environment; never secrets, which go into files.

        Raises:
            DeadlineError: it did not end in time.
        """
        ...

    def pipe(self, argv: Sequence[str], *, deadline: float, stdin: bytes = b"") -> RawResult:
        """Run `argv` to its end, with bytes going in and out.

        Raises:
            DeadlineError: it did not end in time.
        """
        ...

    def stream(self, argv: Sequence[str]) -> Iterator[str]:
        """Run `argv` and yield its lines as they come, until it ends or the caller stops."""
        ...

    def put(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file atomically: a reader sees the old content or the new, never a part."""
        ...

    def read(self, path: str) -> bytes | None:
        """The content of a file, or None where there is none."""
        ...

    def fenced(self, fence: Fence) -> "Host":
        """The same host, where nothing is done any more once the lock of `fence` is lost.

        All methods raise `LockedError` then.
        """
        ...

    def reconnect(self) -> None:
        """Have what follows go over a new connection, to a host that needs one.

        That it still lets somebody in is not said by a connection that is open.
        """
        ...


def check(result: Result, what: str, *, hint: str = "") -> Result:
    """Return `result` if its command succeeded.

    Raises:
        StepError: it did not; the message is `what`, the cause is what the command said.
    """
    if not result.ok:
        raise StepError(what, cause=result.said[-2000:], hint=hint or _command(result.argv))
    return result


def _command(argv: Sequence[str]) -> str:
    """What ran, for a hint. A script is no help to a reader: it is named by its shell alone."""
    words: list[str] = []
    for word in argv:
        if "\n" in word or len(word) > LONGEST_WORD or (words and words[-1] == "-c"):
            return ""
        words.append(word)
    return f"the command: {shlex.join(words[:6])}" if words else ""
