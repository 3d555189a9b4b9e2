"""The control groups of a lab: one for each host in every hierarchy that this machine has.

They lie below the groups that the lab was started in, so that what limits those limits the lab.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.fleet.lab.shell import LabError

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "ddtree-lab-"


@dataclass(frozen=True)
class Cgroups:
    """The same group in every hierarchy.

    Attributes:
        paths: folders by hierarchy: `memory`, `name=systemd`, … and the empty name for version 2.
    """

    paths: dict[str, Path]

    @classmethod
    def current(cls) -> Self:
        """The groups of this process."""
        paths = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, hierarchy, path = line.split(":", 2)
            folder = hierarchy.removeprefix("name=")
            if not hierarchy and (MOUNT / "unified").is_dir():
                folder = "unified"
            paths[hierarchy] = MOUNT / folder / path.lstrip("/")
        return cls(paths)

    def child(self, name: str) -> Self:
        """The groups of that name below these."""
        return type(self)({hierarchy: path / name for hierarchy, path in self.paths.items()})

    def make(self) -> None:
        """Make the folders. No member can reach this machine's disks, whatever it is made to do."""
        for hierarchy, path in self.paths.items():
            path.mkdir(exist_ok=True)
            if hierarchy == "cpuset":  # a new one is empty, and takes no process
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (path / name).write_text((path.parent / name).read_text())
            elif hierarchy == "devices":
                (path / "devices.deny").write_text("b *:* rwm")

    @property
    def guards_devices(self) -> bool:
        """Whether `make` has closed the way to this machine's disks."""
        return "devices" in self.paths

    def enter_files(self) -> list[Path]:
        """The files that a process writes itself into."""
        return [path / "cgroup.procs" for path in self.paths.values()]

    def freeze(self, frozen: bool) -> None:
        """Stop all members at once, or let them go on."""
        if "freezer" in self.paths:
            _set(self.paths["freezer"] / "freezer.state", "FROZEN" if frozen else "THAWED")
        else:
            _set(self.paths[""] / "cgroup.freeze", str(int(frozen)))

    def make_trap(self) -> None:
        """Make the group `stuck`: who enters it is in state D, and deaf to SIGKILL."""
        if "freezer" in self.paths:
            stuck = self.paths["freezer"] / "stuck"
            stuck.mkdir(exist_ok=True)
            _set(stuck / "freezer.state", "FROZEN")
            (stuck / "cgroup.procs").chmod(0o666)

    def open_trap(self) -> None:
        """Let go whoever is in `stuck`."""
        if "freezer" in self.paths:
            stuck = self.paths["freezer"] / "stuck"
            if stuck.is_dir():
                _set(stuck / "freezer.state", "THAWED")

    def remove(self, deadline: float = 10.0) -> None:
        """Remove the groups once the last member is gone.

        Raises:
            LabError: some are still there after `deadline` seconds.
        """
        end = time.monotonic() + deadline
        while left := [path for path in self.paths.values() if path.is_dir()]:
            for path in left:
                for folder, _, files in os.walk(path, topdown=False):
                    if "freezer.state" in files:
                        with contextlib.suppress(OSError):
                            (Path(folder) / "freezer.state").write_text("THAWED")
                    with contextlib.suppress(OSError):
                        Path(folder).rmdir()
            if time.monotonic() > end:
                raise LabError(f"still there: {', '.join(map(str, left))}")
            time.sleep(0.005)


def sweep() -> None:
    """Remove the groups of labs whose supervisor was killed before it could."""
    here = Cgroups.current()
    found = {
        path.name
        for parent in here.paths.values()
        for path in parent.glob(f"{PREFIX}*")
        if not _alive(path.name.removeprefix(PREFIX))
    }
    for name in found:
        here.child(name).remove()


def _alive(pid: str) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # empty: ended and not reaped yet
    except OSError:
        return False


def _set(path: Path, value: str) -> None:
    path.write_text(value)
