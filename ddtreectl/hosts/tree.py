"""What a folder of a host holds, as the host tells it.

A host that lies about it must not have anything written outside of the folder of another one, nor
anything there that would run with the rights of somebody else.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddtreectl.errors import StepError
from ddtreectl.hosts.protocol import Host, check

LIST_DEADLINE = 1800.0

_SHA256 = re.compile(r"[0-9a-f]{64}")
_OF_ANOTHER_USER = 0o6000
"""The bits by which a file runs as its owner or group (chmod(2))."""


@dataclass(frozen=True)
class Entry:
    """A file, link or folder.

    Attributes:
        path: below the folder.
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

    Raises:
        StepError: it cannot be read, or what the host says of it cannot be true.
    """
    program = Path(__file__).with_name("list_tree.py").read_text()
    done = host.run([python, "-I", "-", folder], stdin=program, deadline=LIST_DEADLINE)
    check(done, f"`{folder}` on `{host.name}` cannot be read")
    try:
        found = dict(_entries(done.stdout))
        for path in found:
            _below_folders(path, found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StepError(
            f"what `{host.name}` says of `{folder}` is not what a folder holds", cause=str(error)
        ) from error
    return found


def _entries(said: str) -> Iterator[tuple[str, Entry]]:
    for line in said.splitlines():
        found = json.loads(line)
        path = _path(found["path"])
        if "sha256" in found:
            size, mode = _number(found["size"]), _number(found["mode"])
            if not _SHA256.fullmatch(found["sha256"]):
                raise ValueError(f"{path!r} has no hash")
            if mode & _OF_ANOTHER_USER:
                raise ValueError(f"{path!r} has mode {mode:o}, and would run as another user")
            yield path, Entry(path, size, mode, found["sha256"], "file")
        elif "target" in found:
            yield path, Entry(path, 0, 0, _text(found["target"]), "link")
        else:
            yield path, Entry(path, 0, 0, "", "folder")


def _path(found: object) -> str:
    path = _text(found)
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError(f"{path!r} is no path below a folder")
    return path


def _text(found: object) -> str:
    if not isinstance(found, str) or "\0" in found or not found:
        raise ValueError(f"{found!r} is no name")
    found.encode()  # names that are not UTF-8 are refused
    return found


def _number(found: object) -> int:
    if not isinstance(found, int) or found < 0:
        raise ValueError(f"{found!r} is no size and no mode")
    return found


def _below_folders(path: str, found: Listing) -> None:
    """Refuse a path that leads through a link: it would be written to where that points."""
    parent = path.rpartition("/")[0]
    if parent and (parent not in found or found[parent].kind != "folder"):
        raise ValueError(f"{path!r} is not in a folder that is listed")
