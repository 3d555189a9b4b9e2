"""A user who is not root and owns nothing, for a while."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def as_another_user() -> Iterator[None]:
    """Look at files as another user does; where root is not ours, one is nobody's friend anyway."""
    ours = os.geteuid()
    if ours == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if ours == 0:
            os.seteuid(ours)


@contextmanager
def readable_copy(folder: Path) -> Iterator[Path]:
    """A copy of a folder that every user may read, unlike the folders of a test."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        copy = place / folder.name
        shutil.copytree(folder, copy)
        for one in (copy, *copy.iterdir()):
            one.chmod(0o755)
        yield copy
