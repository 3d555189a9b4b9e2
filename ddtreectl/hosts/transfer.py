"""Brings files of any size to a host, into a store that names each by its hash.

A file that the store has is never sent again, by whatever name. One that was cut off goes on where
it ended: it grows in pieces, each by a command of its own, and takes its name once its hash is
right. `hosts.upload` is for what fits into memory and one command.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from shlex import quote
from typing import BinaryIO

from ddtreectl.errors import StepError
from ddtreectl.hosts.protocol import Host, check

PIECE = 8 << 20
SLOWEST = 50_000
"""Bytes a second that a transfer must make on average."""

DAMAGED, MOVED, FULL = 71, 73, 70

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are there."""

_LIST = r"""
cd -- "$1" 2>/dev/null || exit 0
for f in *; do [ ! -f "$f" ] || stat -c '%n %s' "$f" || exit 1; done
"""

_APPEND = r"""
part=$1/$2.part offset=$3
[ "$(stat -c %s -- "$part" 2>/dev/null || echo 0)" = "$offset" ] || exit 73
cat >>"$part" && exit 0
set -- $(stat -f -c '%S %a %c %d' -- "$1")
[ $(($1 * $2)) -ge 65536 ] && { [ "$3" -eq 0 ] || [ "$4" -gt 0 ]; } || exit 70
exit 1
"""

_FINISH = r"""
part=$1/$2.part
[ "$(sha256sum <"$part" | cut -d' ' -f1)" = "$2" ] || { rm -f -- "$part"; exit 71; }
chmod 644 -- "$part" && sync -- "$part" && mv -T -- "$part" "$1/$2"
"""


@dataclass(frozen=True)
class LocalFile:
    """A file of the operator's machine.

    Attributes:
        path: where it is.
        size: in bytes.
        sha256: of its content.
    """

    path: Path
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "LocalFile":
        """Read a file.

        Raises:
            StepError: it cannot be read.
        """
        try:
            with path.open("rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
            return cls(path, path.stat().st_size, digest)
        except OSError as error:
            raise StepError(f"`{path}` cannot be read", cause=error.strerror or "") from error


@dataclass(frozen=True)
class Store:
    """The store of a host.

    Attributes:
        host: the host.
        folder: where it is, as an absolute path.
    """

    host: Host
    folder: str

    def held(self) -> dict[str, int]:
        """Size of each file in it by hash; of one that was cut off, by its hash and `.part`."""
        done = self.host.run(["sh", "-c", _LIST, "ddtreectl-store", self.folder], deadline=60.0)
        if not done.ok:
            raise StepError(
                f"`{self.folder}` on `{self.host.name}` cannot be read", cause=done.said
            )
        pairs = (line.split(" ") for line in done.stdout.splitlines())
        return {name: int(size) for name, size in pairs if size.isdecimal()}

    def path(self, file: LocalFile) -> str:
        """Where a file is once it is there."""
        return f"{self.folder}/{file.sha256}"

    def missing(self, files: Iterable[LocalFile]) -> tuple[list[LocalFile], int]:
        """Those of `files` that are not there, and the bytes of them that are still to be sent."""
        held = self.held()
        absent = {file.sha256: file for file in files if file.sha256 not in held}
        left = sum(file.size - held.get(f"{digest}.part", 0) for digest, file in absent.items())
        return list(absent.values()), max(left, 0)

    def send(self, files: Sequence[LocalFile], progress: Progress) -> None:
        """Send those of `files` that are not there.

        Raises:
            StepError: the disk is full, or a file has changed meanwhile.
            UnreachableError: the connection was lost; the next try goes on from there.
        """
        held = self.held()
        absent = list({f.sha256: f for f in files if f.sha256 not in held}.values())
        total, done = sum(file.size for file in absent), 0
        script = 'umask 022; exec mkdir -p -- "$1"'
        made = self.host.run(["sh", "-c", script, "ddtreectl-mkdir", self.folder], deadline=60.0)
        check(made, f"`{self.folder}` cannot be made on `{self.host.name}`")
        for file in absent:
            offset = held.get(f"{file.sha256}.part", 0)
            if offset > file.size:
                raise StepError(
                    f"`{self.path(file)}.part` on `{self.host.name}` is longer than its file",
                    hint=f"remove it there: rm {quote(self.path(file))}.part",
                )
            try:
                with file.path.open("rb") as content:
                    content.seek(offset)
                    for sent in self._pieces(file, content, offset):
                        progress(done + sent, total)
            except OSError as error:
                raise StepError(
                    f"`{file.path}` cannot be read", cause=error.strerror or ""
                ) from error
            self._finish(file)
            done += file.size
            progress(done, total)

    def _pieces(self, file: LocalFile, content: BinaryIO, offset: int) -> Iterable[int]:
        while offset < file.size or file.size == 0:
            piece = content.read(PIECE)
            script = ["sh", "-c", _APPEND, "ddtreectl-append"]
            done = self.host.pipe(
                [*script, self.folder, file.sha256, str(offset)],
                stdin=piece,
                deadline=60.0 + len(piece) / SLOWEST,
            )
            what = f"`{file.path.name}` cannot be written to `{self.host.name}`"
            if done.returncode == FULL:
                raise StepError(
                    f"{what}: the disk of {self.folder} is full",
                    cause=f"{file.size - offset} B of it are left to send",
                    hint=f"make room there: `df -h {self.folder}` and `df -i {self.folder}`",
                )
            if done.returncode == MOVED:
                raise StepError(
                    what, cause="someone else writes it at the same time", hint="try again"
                )
            if done.returncode != 0:
                raise StepError(what, cause=done.said)
            if not piece:
                return
            offset += len(piece)
            yield offset

    def _finish(self, file: LocalFile) -> None:
        script = ["sh", "-c", _FINISH, "ddtreectl-finish", self.folder, file.sha256]
        done = self.host.run(script, deadline=60.0 + file.size / 20_000_000)
        what = f"`{file.path.name}` cannot be written to `{self.host.name}`"
        if done.returncode == DAMAGED:
            raise StepError(
                what,
                cause="what arrived is not what was to be sent; it was removed",
                hint="try again; was the file changed meanwhile?",
            )
        if not done.ok:
            raise StepError(what, cause=done.said)
