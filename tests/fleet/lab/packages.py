"""What a lab needs of this machine, and the Debian packages that it brings to its hosts.

The packages are downloaded and unpacked into the hosts' common layer; none is installed here.
"""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fleet.lab.shell import LabError, call, missing_programs

CACHE = Path("/var/cache/ddtree-lab")

UNPACKED = (
    "openssh-server",
    "openssh-sftp-server",
    "libwrap0",
    "rsync",
    "libpopt0",
    "sudo",
    "procps",
    "libproc2-0",
)
"""What hosts have beyond this machine: an SSH server and what operators use."""

PROGRAMS = {
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "dbus-daemon": "dbus",
    "bridge": "iproute2",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ss": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "tar": "tar",
    "unshare": "util-linux",
}
"""Programs that this machine must have, with the packages that they come from."""


def unavailable() -> str | None:
    """Why no lab can run on this machine, or None where it can."""
    if os.geteuid() != 0:
        return "a lab of hosts needs root"
    if absent := missing_programs(tuple(PROGRAMS)):
        return f"a lab of hosts needs the packages {', '.join({PROGRAMS[p] for p in absent})}"
    if not Path("/lib/systemd/systemd").exists():
        return "a lab of hosts needs the package systemd"
    asked = ["/usr/bin/python3", "-c", "import ensurepip, venv"]
    if not Path(asked[0]).exists() or subprocess.run(asked, check=False).returncode != 0:
        return "a lab of hosts needs the packages python3 and python3-venv"
    namespaces = ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--time", "--fork"]
    tried = subprocess.run(
        ["unshare", *namespaces, "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        return f"a lab of hosts needs namespaces: {tried.stderr.strip()}"
    return None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep other labs that begin at this moment from the same downloads and remains."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def archives() -> list[Path]:
    """The .deb files of what this machine lacks, downloaded where they are not yet there.

    Raises:
        LabError: the package mirror does not have them, or cannot be reached.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in UNPACKED if not _installed(name)]
    absent = [name for name in wanted if _archive(name) is None]
    if absent:
        _download(absent)
    found = [(name, _archive(name)) for name in wanted]
    if lost := [name for name, path in found if path is None]:
        raise LabError(f"the packages {', '.join(lost)} were downloaded and are not in {CACHE}")
    return [path for _, path in found if path is not None]


def unpack(archive: Path, root: Path) -> None:
    """Put the files of a package under `root`, whose links among folders stay."""
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE
    ) as package:
        done = subprocess.run(
            ["tar", "-C", str(root), "--keep-directory-symlink", "--no-overwrite-dir"]
            + [f"--exclude=./usr/share/{folder}" for folder in ("doc", "man", "lintian", "locale")]
            + ["-xf", "-"],
            stdin=package.stdout,
            check=False,
        )
    if done.returncode != 0 or package.returncode != 0:
        raise LabError(f"`{archive}` cannot be unpacked; remove it so that it is downloaded again")


def _download(names: list[str]) -> None:
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *names]
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        try:
            call(*command, cwd=Path(folder))
        except LabError:  # no package lists yet, or lists that are out of date
            call("apt-get", "-qq", "update")
            call(*command, cwd=Path(folder))
        for archive in Path(folder).glob("*.deb"):
            archive.replace(
                CACHE / archive.name
            )  # whole, or not there: other labs read this folder


def _installed(name: str) -> bool:
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", name]
    return subprocess.run(query, capture_output=True, check=False).stdout == b"installed"


def _archive(name: str) -> Path | None:
    found = sorted(CACHE.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
