"""Free space and inodes where ddtreectl writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import Output, as_int


@dataclass(frozen=True)
class Disk:
    """What is free on the file system of a path.

    Attributes:
        path: the path that was asked for, which need not exist yet.
        free_bytes: bytes that a file may still take.
        free_inodes: files that may still be made; None where the file system has no such limit.
    """

    path: str
    free_bytes: int
    free_inodes: int | None


def command(paths: Sequence[str]) -> str:
    """Print block size, free blocks, inodes and free inodes of each path or its nearest parent."""
    words = " ".join(quote(path) for path in paths)
    return (
        f'for p in {words}; do q=$p; while [ ! -e "$q" ]; do q=$(dirname "$q"); done; '
        "printf '%s ' \"$(stat -f -c '%S %a %c %d' \"$q\")\"; printf '%s\\n' \"$p\"; done"
    )


def parse(output: Output) -> dict[str, Disk]:
    """What is free, by path."""
    found = {}
    for line in output.lines:
        columns = line.split(" ", 4)
        if len(columns) != 5:
            continue
        size, free, inodes, free_inodes = (as_int(column) for column in columns[:4])
        if size is None or free is None:
            continue
        path = columns[4]
        found[path] = Disk(path, size * free, free_inodes if inodes else None)
    return found
