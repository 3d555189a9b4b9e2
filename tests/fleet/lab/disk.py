"""The disk of a host: a filesystem in memory that is as large as its host may believe."""

import os
import shutil
from pathlib import Path

from tests.fleet.lab.shell import call

INODES = 200_000


class Disk:
    """A disk with room for files and for inodes, either of which can be made to run out.

    Args:
        folder: where it is mounted.
        size: as `mount` takes it.
    """

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        self.size = size

    def mount(self) -> None:
        """Provide an empty disk."""
        self.folder.mkdir(parents=True)
        options = f"mode=755,size={self.size},nr_inodes={INODES}"
        call("mount", "-t", "tmpfs", "-o", options, "disk", str(self.folder))
        self._lay_out()

    def erase(self) -> None:
        """Make it empty."""
        for entry in self.folder.iterdir():
            shutil.rmtree(entry)
        self.restore()
        self._lay_out()

    def fill(self, free_kib: int = 0) -> None:
        """Leave that much room for content."""
        state = os.statvfs(self.folder)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize // 1024
        self._remount(f"size={max(used + free_kib, 4)}k")

    def fill_inodes(self, free: int = 0) -> None:
        """Leave room for that many files."""
        state = os.statvfs(self.folder)
        self._remount(f"nr_inodes={state.f_files - state.f_ffree + free}")

    def restore(self) -> None:
        """Give back what it had at first."""
        self._remount(f"size={self.size},nr_inodes={INODES}")

    def _lay_out(self) -> None:
        (self.folder / "upper").mkdir()
        (self.folder / "work").mkdir()

    def _remount(self, options: str) -> None:
        call("mount", "-o", f"remount,{options}", str(self.folder))
