"""Large files and whole folders on their way to a host: cut off, damaged, and gone on with."""

import json
import os
import shutil
import sys
import tarfile
from collections.abc import Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from ddtreectl.errors import StepError, UnreachableError
from ddtreectl.hosts.copy import Copy
from ddtreectl.hosts.local import LocalHost
from ddtreectl.hosts.protocol import RawResult, Result
from ddtreectl.hosts.transfer import PIECE, LocalFile, Store
from ddtreectl.hosts.tree import listing

LARGE = 2 * PIECE + 12345


class CutOff(LocalHost):
    """A host whose connection is lost after so many commands with bytes."""

    def __init__(self, commands: int) -> None:
        super().__init__("there")
        self.commands = commands
        self.sent = 0

    def pipe(self, argv: Sequence[str], *, deadline: float, stdin: bytes = b"") -> RawResult:
        if self.commands == 0:
            raise UnreachableError("the connection was lost")
        self.commands -= 1
        self.sent += len(stdin)
        return super().pipe(argv, deadline=deadline, stdin=stdin)


@pytest.fixture
def large(tmp_path: Path) -> LocalFile:
    path = tmp_path / "large.whl"
    path.write_bytes(os.urandom(LARGE))
    return LocalFile.of(path)


def nothing(done: int, total: int) -> None:
    assert 0 <= done <= total


def test_a_file_is_sent_once_and_by_its_hash(large: LocalFile, tmp_path: Path) -> None:
    host = CutOff(100)
    store = Store(host, str(tmp_path / "store"))
    assert store.missing([large, large]) == ([large], LARGE)
    assert not (tmp_path / "store").exists()
    told: list[tuple[int, int]] = []
    store.send([large, large], lambda done, total: told.append((done, total)))
    assert Path(store.path(large)).read_bytes() == large.path.read_bytes()
    assert told[-1] == (LARGE, LARGE)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    before = host.sent
    store.send([large], nothing)
    assert host.sent == before
    assert store.missing([large]) == ([], 0)


@pytest.mark.parametrize("commands", [1, 2])
def test_a_file_that_was_cut_off_goes_on_where_it_ended(
    commands: int, large: LocalFile, tmp_path: Path
) -> None:
    folder = str(tmp_path / "store")
    with pytest.raises(UnreachableError):
        Store(CutOff(commands), folder).send([large], nothing)
    again = CutOff(100)
    store = Store(again, folder)
    left = LARGE - commands * PIECE
    assert store.missing([large]) == ([large], left)
    store.send([large], nothing)
    assert again.sent == left
    assert Path(store.path(large)).read_bytes() == large.path.read_bytes()


def test_a_beginning_that_is_damaged_is_thrown_away(large: LocalFile, tmp_path: Path) -> None:
    store = Store(LocalHost("there"), str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    part = Path(f"{store.path(large)}.part")
    part.write_bytes(b"x" * PIECE)
    with pytest.raises(StepError, match="cannot be written") as failed:
        store.send([large], nothing)
    assert "not what was to be sent" in failed.value.cause
    assert not part.exists()
    store.send([large], nothing)
    assert Path(store.path(large)).read_bytes() == large.path.read_bytes()


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    file = LocalFile.of(tmp_path / "empty")
    store = Store(LocalHost("there"), str(tmp_path / "store"))
    store.send([file], nothing)
    assert Path(store.path(file)).read_bytes() == b""


def test_a_file_that_is_gone(large: LocalFile, tmp_path: Path) -> None:
    large.path.unlink()
    with pytest.raises(StepError, match="cannot be read"):
        Store(LocalHost("there"), str(tmp_path / "store")).send([large], nothing)
    with pytest.raises(StepError, match="cannot be read"):
        LocalFile.of(large.path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder like an environment: many small files, a large one, links, an empty folder."""
    folder = tmp_path / "environment"
    (folder / "lib/package").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "lib/library.so").write_bytes(os.urandom(LARGE))
    for number in range(50):
        (folder / f"lib/package/-{number} ü.py").write_text(f"number = {number}\n")
    (folder / "lib/program").write_text("#!/bin/sh\n")
    (folder / "lib/program").chmod(0o755)
    (folder / "python").symlink_to("/usr/bin/python3")
    return folder


class Elsewhere(CutOff):
    """A host on which what is in one folder here is in another."""

    def __init__(self, here: Path, there: Path, commands: int = 10**6) -> None:
        super().__init__(commands)
        self.moved = (str(here), str(there))

    def pipe(self, argv: Sequence[str], *, deadline: float, stdin: bytes = b"") -> RawResult:
        words = [word.replace(*self.moved) for word in argv]
        return super().pipe(words, deadline=deadline, stdin=stdin)

    def run(self, argv: Sequence[str], **options: Any) -> Result:
        words = [word.replace(*self.moved) for word in argv]
        return super().run(words, **options)


def copying(tree: Path, host: LocalHost) -> Copy:
    source = LocalHost("here")
    wanted = listing(source, sys.executable, str(tree))
    return Copy(source, host, str(tree), wanted, listing(host, sys.executable, str(tree)))


@pytest.mark.parametrize("commands", [0, 1, 2, 3, 10**6])
def test_a_folder_is_the_same_on_both_hosts(commands: int, tree: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    host = Elsewhere(tree, there, commands)
    copy = copying(tree, host)
    assert copy.bytes > LARGE
    if commands < 10:
        with pytest.raises(UnreachableError):
            copy.run(nothing)
        host.commands = 10**6
        again = copying(tree, host)
        assert len(again.missing) < len(copy.missing) or commands < 1
        again.run(nothing)
    else:
        copy.run(nothing)
    assert copying(tree, host).missing == []
    assert str((there / "python").readlink()) == "/usr/bin/python3"
    assert (there / "lib/program").stat().st_mode & 0o777 == 0o755
    assert not list(there.rglob("*.part"))


def test_what_does_not_belong_there_is_replaced_or_removed(tree: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "lib/package").mkdir(parents=True)
    (there / "lib/package/old.py").write_text("stale")
    (there / "python").mkdir()
    (there / "lib/library.so").write_bytes(b"other")
    kept = tmp_path / "kept"
    os.link(there / "lib/library.so", kept)
    host = Elsewhere(tree, there)
    copying(tree, host).run(nothing)
    assert copying(tree, host).missing == []
    assert not (there / "lib/package/old.py").exists()
    assert kept.read_bytes() == b"other"  # a file that others share is not written into


def test_a_file_that_changes_meanwhile_is_told(tree: Path, tmp_path: Path) -> None:
    host = Elsewhere(tree, tmp_path / "there")
    copy = copying(tree, host)
    (tree / "lib/library.so").write_bytes(os.urandom(LARGE))
    with pytest.raises(StepError, match="is not what `here` has"):
        copy.run(nothing)
    shutil.rmtree(tree)
    with pytest.raises(StepError, match="cannot be read"):
        copy.run(nothing)


HASH = "0" * 64
LIES = {
    "a path that climbs": {"path": "../outside", "size": 1, "mode": 420, "sha256": HASH},
    "a path from the root": {"path": "/etc/cron.d/x", "size": 1, "mode": 420, "sha256": HASH},
    "a path through nothing": {"path": "lib/x", "size": 1, "mode": 420, "sha256": HASH},
    "a file of another user": {"path": "x", "size": 1, "mode": 0o4755, "sha256": HASH},
    "no size": {"path": "x", "size": -1, "mode": 420, "sha256": HASH},
    "no hash": {"path": "x", "size": 1, "mode": 420, "sha256": "$(reboot)"},
    "no link": {"path": "x", "target": 7},
    "no path": {"path": "", "target": "/bin/sh"},
    "no entry": ["path"],
}


class Liar(LocalHost):
    """A host that tells what it likes of its folders, and packs what it likes."""

    def __init__(self, *told: object, packed: bytes = b"") -> None:
        super().__init__("liar")
        self.told = "".join(f"{json.dumps(entry)}\n" for entry in told)
        self.packed = packed

    def run(self, argv: Sequence[str], **options: Any) -> Result:
        return Result(tuple(argv), 0, self.told, "")

    def pipe(self, argv: Sequence[str], **options: Any) -> RawResult:
        return RawResult(0, self.packed, b"")


@pytest.mark.parametrize("name", LIES)
def test_a_host_that_lies_about_its_folder(name: str) -> None:
    with pytest.raises(StepError, match="what `liar` says of `/opt/x`"):
        listing(Liar(LIES[name]), sys.executable, "/opt/x")


def test_a_path_that_leads_through_a_link() -> None:
    link = {"path": "lib", "target": "/etc"}
    with pytest.raises(StepError) as caught:
        listing(Liar(link, LIES["a path through nothing"]), sys.executable, "/opt/x")
    assert "'lib/x' is not in a folder that is listed" in caught.value.cause


def test_only_what_was_listed_is_unpacked(tmp_path: Path) -> None:
    """A host that packs more than it listed, and with other rights, changes nothing by that."""
    said = b"true\n"
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, mode in (("x", 0o4777), ("sitecustomize.py", 0o644), ("../climbs", 0o644)):
            header = tarfile.TarInfo(name)
            header.size, header.mode, header.mtime = len(said), mode, 1234567890
            archive.addfile(header, BytesIO(said))
    entry = {"path": "x", "size": 5, "mode": 0o755, "sha256": sha256(said).hexdigest()}
    there = tmp_path / "a/there"
    liar = Liar(entry, packed=packed.getvalue())
    wanted = listing(liar, sys.executable, str(there))
    Copy(liar, LocalHost("there"), str(there), wanted, {}).run(nothing)
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["there", "x"]
    about = (there / "x").stat()
    assert (about.st_mode & 0o7777, about.st_mtime) == (0o755, 1234567890)

    other = dict(entry, sha256=HASH)
    wanted = listing(Liar(other), sys.executable, str(there))
    with pytest.raises(StepError, match="is not what it was said to be"):
        Copy(liar, LocalHost("there"), str(there), wanted, {}).run(nothing)
