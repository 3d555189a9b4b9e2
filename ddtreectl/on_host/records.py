"""The JSON files of ddtreectl."""

import os
import time


def found(pattern: str) -> "list[str]":
    """The paths that a pattern of a shell stands for, where `*` is a name or `*.json`."""
    paths = [""]
    for part in pattern.split("/")[1:]:
        if not part.startswith("*"):
            paths = [path + "/" + part for path in paths]
            continue
        paths = [
            path + "/" + name
            for path in paths
            if os.path.isdir(path)
            for name in sorted(os.listdir(path))
            if name.endswith(part[1:]) and not name.startswith(".")
        ]
    return paths


def tell_records(files: "list[str]", folders: "list[str]") -> None:
    """Print a line for each file: path, age in seconds, content; and for each folder its path.

    Args:
        files: patterns of files.
        folders: patterns of folders.
    """
    now = int(time.time())
    for path in [path for pattern in files for path in found(pattern) if os.path.isfile(path)]:
        age, text = 0, ""
        try:
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                age = now - int(os.fstat(file.fileno()).st_mtime)
                text = file.read().replace("\n", "")
        except FileNotFoundError:
            continue  # it has been removed meanwhile
        except OSError:
            pass  # it keeps its place, as every record does that cannot be read
        print(path, age, text, sep="\t")
    for path in [path for pattern in folders for path in found(pattern) if os.path.isdir(path)]:
        print(path + "/", 0, "", sep="\t")
