"""Whether this user may read a file of a checkpoint: what parses it may not say why it can't."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from ddtree_engine.errors import CheckpointError


def permission_hint(path: str | Path) -> str:
    """The next step where this user is not let at `path`."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # it has no name
        user = str(os.geteuid())
    return f"`namei -l {path}` shows where user `{user}` is stopped"


def reading_hint(path: Path, error: OSError | UnicodeDecodeError, wanted: str) -> str:
    """The next step where a file that a user names can't be read; `wanted` is what it should be."""
    return permission_hint(path) if isinstance(error, PermissionError) else f"give {wanted}"


def check_readable(path: Path) -> None:
    """Open `path` and read nothing.

    Raises:
        CheckpointError: it can't be opened.
    """
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        hint = permission_hint(path) if isinstance(error, PermissionError) else None
        raise CheckpointError(f"`{path}` can't be read", hint=hint) from error
