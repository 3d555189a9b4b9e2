"""Copies a folder from one host to another, through the operator's machine.

What the other host has already, by its hash, is not copied again; so a copy that was cut off goes
on where it ended. Small files go in packs, large ones in pieces; at the end every hash is compared.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddtreectl.errors import StepError
from ddtreectl.hosts.protocol import Host, check
from ddtreectl.hosts.transfer import PIECE, SLOWEST, Progress

LIST_DEADLINE = 1800.0
PACK_FILES = 2000

_READ = 'exec dd if="$1" iflag=skip_bytes,count_bytes skip="$2" count="$3" bs=1M status=none'

_APPEND = r"""
[ "$2" = 0 ] && rm -f -- "$1"
[ "$(stat -c %s -- "$1" 2>/dev/null || echo 0)" = "$2" ] && exec cat >>"$1"
exit 73
"""

_NAME = r"""
[ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$3" ] || { rm -f -- "$1"; exit 71; }
chmod "$4" -- "$1" && mv -T -- "$1" "$2"
"""


@dataclass(frozen=True)
class Entry:
    """A file, link or folder.

    Attributes:
        path: below the folder that is copied.
        size: of a file, in bytes.
        mode: of a file.
        content: the hash of a file, or what a link points to; nothing for a folder.
        kind: which of these it is.
    """

    path: str
    size: int
    mode: int
    content: str
    kind: str


Listing = Mapping[str, Entry]


def listing(host: Host, python: str, folder: str) -> Listing:
    """What a folder holds, by path; nothing where there is no such folder.

    Args:
        host: the host.
        python: an interpreter there.
        folder: the folder.
    """
    program = Path(__file__).with_name("list_tree.py").read_text()
    done = host.run([python, "-I", "-", folder], stdin=program, deadline=LIST_DEADLINE)
    check(done, f"`{folder}` on `{host.name}` cannot be read")
    return dict(_entries(done.stdout))


def _entries(said: str) -> Iterator[tuple[str, Entry]]:
    for line in said.splitlines():
        found = json.loads(line)
        path = str(found["path"])
        if "sha256" in found:
            yield path, Entry(path, found["size"], found["mode"], found["sha256"], "file")
        elif "target" in found:
            yield path, Entry(path, 0, 0, str(found["target"]), "link")
        else:
            yield path, Entry(path, 0, 0, "", "folder")


@dataclass(frozen=True)
class Copy:
    """One folder on its way.

    Attributes:
        source: the host that has it.
        target: the host that is to have it.
        folder: its path on both.
        wanted: what it holds on the source.
        there: what it holds on the target.
    """

    source: Host
    target: Host
    folder: str
    wanted: Listing
    there: Listing

    @property
    def missing(self) -> list[Entry]:
        """What the target does not have as it is to be."""
        return [entry for path, entry in self.wanted.items() if self.there.get(path) != entry]

    @property
    def bytes(self) -> int:
        """How much that is."""
        return sum(entry.size for entry in self.missing)

    def run(self, progress: Progress) -> None:
        """Copy what is missing, and remove what does not belong there.

        Raises:
            StepError: a file cannot be read or written.
            UnreachableError: a connection was lost; the next try goes on from there.
        """
        script = 'umask 022; exec mkdir -p -- "$1"'
        made = self.target.run(["sh", "-c", script, "ddtreectl-mkdir", self.folder], deadline=60.0)
        check(made, f"`{self.folder}` cannot be made on `{self.target.name}`")
        self._remove(
            [
                path
                for path, entry in self.there.items()
                if not _partial(path, self.wanted)
                and (path not in self.wanted or self.wanted[path].kind != entry.kind)
            ]
        )
        total, done = self.bytes, 0
        small = [entry for entry in self.missing if entry.size <= PIECE]
        for pack in _packs(small):
            self._pack(pack)
            done += sum(entry.size for entry in pack)
            progress(done, total)
        for entry in self.missing:
            if entry.size > PIECE:
                for sent in self._pieces(entry):
                    progress(done + sent, total)
                done += entry.size

    def _remove(self, paths: Sequence[str]) -> None:
        if paths:
            done = self.target.pipe(
                ["sh", "-c", 'cd -- "$1" && exec xargs -0 rm -rf --', "ddtreectl-rm", self.folder],
                stdin=_joined(paths),
                deadline=300.0,
            )
            if done.returncode:
                raise StepError(
                    f"`{self.folder}` on `{self.target.name}` cannot be cleared", cause=done.said
                )

    def _pack(self, pack: Sequence[Entry]) -> None:
        size = sum(entry.size for entry in pack)
        names = _joined([entry.path for entry in pack])
        deadline = 60.0 + size / SLOWEST
        options = ["--no-recursion", "--null", "--verbatim-files-from", "-T", "-"]
        packed = self.source.pipe(
            ["tar", "-C", self.folder, *options, "-cf", "-"], stdin=names, deadline=deadline
        )
        if packed.returncode:
            raise StepError(
                f"`{self.folder}` on `{self.source.name}` cannot be read", cause=packed.said
            )
        unpacked = self.target.pipe(
            ["tar", "-C", self.folder, "--no-same-owner", "-xpf", "-"],
            stdin=packed.stdout,
            deadline=deadline,
        )
        if unpacked.returncode:
            raise self._not_written(unpacked.said)

    def _pieces(self, entry: Entry) -> Iterator[int]:
        """Copy a large file, and yield after each piece how much of it is there."""
        path = f"{self.folder}/{entry.path}"
        part = f"{path}.part"
        before = self.there.get(f"{entry.path}.part")
        at = before.size if before is not None and before.size <= entry.size else 0
        while at < entry.size:
            words = ["sh", "-c", _READ, "ddtreectl-read", path, str(at), str(PIECE)]
            deadline = 60.0 + PIECE / SLOWEST
            read = self.source.pipe(words, deadline=deadline)
            if read.returncode or not read.stdout:
                raise StepError(f"`{path}` on `{self.source.name}` cannot be read", cause=read.said)
            words = ["sh", "-c", _APPEND, "ddtreectl-append", part, str(at)]
            written = self.target.pipe(words, stdin=read.stdout, deadline=deadline)
            if written.returncode:
                raise self._not_written(written.said)
            at += len(read.stdout)
            yield at
        words = ["sh", "-c", _NAME, "ddtreectl-name", part, path, entry.content, f"{entry.mode:o}"]
        named = self.target.pipe(words, deadline=60.0 + entry.size / 20_000_000)
        if named.returncode:
            raise StepError(
                f"`{path}` on `{self.target.name}` is not what `{self.source.name}` has",
                cause=named.said,
                hint="try again; it is copied anew",
            )

    def _not_written(self, said: str) -> StepError:
        return StepError(
            f"`{self.folder}` on `{self.target.name}` cannot be written",
            cause=said,
            hint=f"is there room? `df -h {self.folder}` and `df -i {self.folder}`",
        )


def _partial(path: str, wanted: Collection[str]) -> bool:
    """Whether it is the beginning of a file that was cut off."""
    return path.endswith(".part") and path.removesuffix(".part") in wanted


def _packs(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    pack: list[Entry] = []
    size = 0
    for entry in entries:
        if pack and (size + entry.size > PIECE or len(pack) == PACK_FILES):
            yield pack
            pack, size = [], 0
        pack.append(entry)
        size += entry.size
    if pack:
        yield pack


def _joined(paths: Sequence[str]) -> bytes:
    return b"".join(path.encode() + b"\0" for path in paths)
