"""Programs of the host: whether there is one, and what it says."""

import os
import sys


def there(program: str) -> "str | None":
    """The path of a program, or None where it is not installed."""
    for folder in os.get_exec_path():
        path = folder + "/" + program
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def said(argv: "list[str]", *, errors: bool = False) -> "tuple[int, str]":
    """Run a program to its end: its exit status (negative for a signal) and what it wrote.

    Args:
        argv: the program and its arguments.
        errors: whether what it writes to stderr is part of that.
    """
    sys.stdout.flush()  # what was said so far counts, should the program never end
    out, theirs = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, theirs, 1)]
    if errors:
        actions.append((os.POSIX_SPAWN_DUP2, theirs, 2))
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions)
    os.close(theirs)
    pieces = []
    while True:
        piece = os.read(out, 1 << 16)
        if not piece:
            break
        pieces.append(piece)
    os.close(out)
    ended = os.waitpid(pid, 0)[1]
    return -(ended & 127) or ended >> 8, b"".join(pieces).decode("utf-8", "replace")
