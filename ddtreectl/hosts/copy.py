"""Copies a folder from one host to another, through the operator's machine.

What the other host has already, by its hash, is not copied again; so a copy that was cut off goes
on where it ended. Small files go in packs, large ones in pieces; at the end every hash is compared.
"""

import tarfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO

from ddtreectl.errors import StepError
from ddtreectl.hosts.protocol import Host, check
from ddtreectl.hosts.transfer import PIECE, SLOWEST, Progress
from ddtreectl.hosts.tree import Entry, Listing
from ddtreectl.hosts.whole_input import whole

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
            names = _joined(paths)
            remove = 'cd -- "$1" && exec xargs -0 rm -rf --'
            words = whole(["sh", "-c", remove, "ddtreectl-rm", self.folder], names)
            done = self.target.pipe(words, stdin=names, deadline=300.0)
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
        try:
            content = _repacked(packed.stdout, pack)
        except (tarfile.TarError, OSError, ValueError, KeyError) as error:
            raise StepError(
                f"`{self.folder}` on `{self.source.name}` is not what it was said to be",
                cause=str(error),
                hint="does somebody change it there? Try again",
            ) from error
        unpacked = self.target.pipe(
            ["tar", "-C", self.folder, "--no-same-owner", "-xpf", "-"],
            stdin=content,
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


def _repacked(packed: bytes, pack: Sequence[Entry]) -> bytes:
    """An archive of exactly what was listed, whatever else the source has packed."""
    content = BytesIO()
    with (
        tarfile.open(fileobj=BytesIO(packed), mode="r:", encoding="utf-8") as theirs,
        tarfile.open(fileobj=content, mode="w", encoding="utf-8") as ours,
    ):
        members = {member.name: member for member in theirs}
        for entry in pack:
            member = members[entry.path]
            ours.addfile(_header(member, entry), BytesIO(_data(theirs, member, entry)))
    return content.getvalue()


def _data(archive: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry) -> bytes:
    """The content of a file in an archive; nothing of a link or folder."""
    if entry.kind != "file":
        return b""
    file = archive.extractfile(member)
    data = file.read(entry.size + 1) if file else b""
    if sha256(data).hexdigest() != entry.content:
        raise ValueError(f"{entry.path} has another content")
    return data


def _header(member: tarfile.TarInfo, entry: Entry) -> tarfile.TarInfo:
    """What an archive says of an entry: as it was listed, with the time that byte code goes by."""
    header = tarfile.TarInfo(entry.path)
    header.mtime = int(member.mtime)
    if entry.kind == "file":
        header.size, header.mode = entry.size, entry.mode
    elif entry.kind == "link":
        header.type, header.linkname = tarfile.SYMTYPE, entry.content
    else:
        header.type, header.mode = tarfile.DIRTYPE, member.mode & 0o777
    return header


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
