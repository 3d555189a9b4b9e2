"""Copies a model from host to host, so that it is there as a whole or not at all.

A folder counts as a model once it holds `config.json`, so that file comes last, after every hash
of the others was compared. A copy that was cut off goes on where it ended.
"""

from shlex import quote

from ddtreectl.apply.session import Session
from ddtreectl.errors import RefusedError, StepError
from ddtreectl.facts.output import as_int
from ddtreectl.hosts.copy import Copy
from ddtreectl.hosts.tree import Listing, listing

CONFIG = "config.json"
MIB = 1 << 20


def free_bytes(session: Session, folder: str) -> int | None:
    """What the disk that `folder` is on, or would be on, has free."""
    script = (
        f'p={quote(folder)}; while [ ! -e "$p" ]; do p=$(dirname -- "$p"); done; '
        'set -- $(stat -f -c "%S %a" -- "$p"); echo $(($1 * $2))'
    )
    return as_int(session.host.run(["sh", "-c", script], deadline=30.0).stdout)


def room(session: Session, folder: str) -> int | None:
    """How large `folder` can be: what its disk has free, and what is there of it already."""
    held = f"du -sb -- {quote(folder)} 2>/dev/null | cut -f1"
    there = as_int(session.host.run(["sh", "-c", held], deadline=30.0).stdout)
    free = free_bytes(session, folder)
    return None if free is None else free + (there or 0)


def bring(source: Session, target: Session, folder: str) -> None:
    """Copy the model in `folder` from one host to the same path on another.

    Raises:
        RefusedError: the disk of the target is too small.
        StepError: a file cannot be read or written, or differs after the copy.
        UnreachableError: a connection was lost; the next try goes on from there.
    """
    with target.report.step(f"compare {folder} on {source.host.name} and {target.host.name}"):
        wanted = listing(source.host, source.python, folder)
        _refuse_links(wanted, folder, source.host.name)
        copy = _without_config(source, target, folder, wanted)
        free = free_bytes(target, folder)
        if free is not None and free < copy.bytes:
            raise RefusedError(
                f"the disk of {folder} on `{target.host.name}` has {free // MIB} MiB free, and "
                f"{copy.bytes // MIB} MiB are needed",
                hint=f"make room there: `df -h {folder}`",
            )
    with target.report.step(f"copy {len(copy.missing)} files, {copy.bytes / MIB:.0f} MiB"):
        copy.run(target.report.amount)
    with target.report.step("compare every hash"):
        left = _without_config(source, target, folder, wanted).missing
        if left:
            raise StepError(
                f"{len(left)} files of {folder} differ on `{target.host.name}` after the copy",
                cause="\n".join(entry.path for entry in left[:10]),
                hint="try again; they are copied anew",
            )
        _copy(source, target, folder, wanted).run(lambda *_: None)


def _without_config(source: Session, target: Session, folder: str, wanted: Listing) -> Copy:
    others = {path: entry for path, entry in wanted.items() if path != CONFIG}
    return _copy(source, target, folder, others)


def _copy(source: Session, target: Session, folder: str, wanted: Listing) -> Copy:
    """The copy; what else the folder holds on the target is not ours, and stays."""
    found = listing(target.host, target.python, folder)
    there = {path: e for path, e in found.items() if path.removesuffix(".part") in wanted}
    return Copy(source.host, target.host, folder, wanted, there)


def _refuse_links(wanted: Listing, folder: str, host: str) -> None:
    """A link out of the folder would lead nowhere on another host."""
    for path, entry in wanted.items():
        if entry.kind == "link" and (entry.content.startswith("/") or ".." in entry.content):
            raise RefusedError(
                f"{folder}/{path} on `{host}` is a link to {entry.content}, out of the folder",
                hint="copy the model with its files: `cp -rL`",
            )
