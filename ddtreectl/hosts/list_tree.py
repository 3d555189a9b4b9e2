"""Lists a folder with the hash of every file: its text is piped into an interpreter of the host.

It has the standard library alone, and prints one JSON object a line.
"""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path


def entries(folder: Path) -> Iterator[dict[str, object]]:
    """Each file, link and folder below `folder`, by its path there; folders before what is in them.

    A file has `size`, `mode` and `sha256`; a link has `target`.
    """
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(parent, name)
            about = path.lstat()
            entry: dict[str, object] = {"path": str(path.relative_to(folder))}
            if stat.S_ISLNK(about.st_mode):
                yield {**entry, "target": str(path.readlink())}
            elif stat.S_ISDIR(about.st_mode):
                yield {**entry, "folder": True}
            elif stat.S_ISREG(about.st_mode):
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                mode = stat.S_IMODE(about.st_mode)
                yield {**entry, "size": about.st_size, "mode": mode, "sha256": digest}


if __name__ == "__main__":
    for found in entries(Path(sys.argv[1])):
        print(json.dumps(found))
