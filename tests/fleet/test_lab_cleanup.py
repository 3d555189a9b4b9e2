"""However a lab ends, nothing of it is left: no process, mount, cgroup or folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fleet.lab.cgroups import PREFIX, Cgroups, sweep
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.network import REPOSITORY
from tests.fleet.lab.waiting import until

OWNER = """
import sys, time
from pathlib import Path
from tests.fleet.lab.fleet import Fleet
fleet = Fleet.boot(1, folder=Path(sys.argv[1]))
print("booted", flush=True)
time.sleep(600)
"""


def processes(folder: Path) -> list[str]:
    """The processes of a lab: its supervisor by its arguments, those of hosts by their console."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace")
            groups = (entry / "cgroup").read_text()
        except OSError:
            continue
        supervises = "tests.fleet.lab.supervisor" in argv and f"\0{folder}\0" in argv
        if supervises or any(f"{PREFIX}{pid}" in groups for pid in pids(folder)):
            found.append(f"{entry.name}: {argv}")
    return found


KNOWN: dict[Path, int] = {}


def pids(folder: Path) -> list[int]:
    return [KNOWN[folder]] if folder in KNOWN else []


def remains(folder: Path) -> list[str]:
    """What is left of a lab on this machine."""
    found = processes(folder)
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    if folder.exists():
        found.append(str(folder))
    return found + [path for pid in pids(folder) for path in groups_of(pid)]


def groups_of(pid: int) -> list[str]:
    """The cgroups of a lab, by its keeper."""
    groups = Cgroups.current().child(f"{PREFIX}{pid}")
    return [str(path) for path in groups.paths.values() if path.exists()]


@contextmanager
def owned_lab(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A lab of one host that belongs to another process."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "booted\n"
            KNOWN[folder] = json.loads((folder / "lab.json").read_text())["pid"]
            assert len(processes(folder)) > 5
            yield owner
        finally:
            owner.kill()


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_closed(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with Fleet.boot(1, folder=folder) as fleet:
        KNOWN[folder] = fleet.pid
        fleet.hosts["h1"].slow(delay=0.01)
        assert remains(folder)
    assert not remains(folder)


def test_owner_killed(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with owned_lab(folder) as owner:
        Fleet.attach(folder).hosts["h1"].freeze()  # killing a frozen process waits for its thaw
        owner.kill()
        until(lambda: not remains(folder), "nothing is left of the lab")


def test_supervisor_killed(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with owned_lab(folder):
        os.kill(child_of(KNOWN[folder]), signal.SIGKILL)
        until(lambda: not remains(folder), "nothing is left of the lab")


def test_keeper_killed(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with owned_lab(folder) as owner:
        os.kill(KNOWN[folder], signal.SIGKILL)
        # Cgroups and files stay, with no one in them, until the next lab boots: here, or beside.
        until(lambda: not processes(folder), "no process is left of the lab")
        owner.kill()
        owner.wait()
    sweep()
    assert not groups_of(KNOWN[folder])
