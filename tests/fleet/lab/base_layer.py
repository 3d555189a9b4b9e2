"""The layer that all hosts have between this machine's `/` and their own disks.

It hides what is this machine's alone, and adds packages, users, keys and configuration. Whatever
is in `guest/files` is in the layer under the same path.
"""

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from tests.fleet.lab.packages import archives, unpack

GUEST = Path(__file__).parent / "guest"
FILES = GUEST / "files"

USERS = {"root": 0, "deploy": 1500, "deploy2": 1501}
"""Who can log in with the lab's key: `deploy` may become root by sudo, `deploy2` may not."""

_SYSTEM_USERS = ("sshd:x:74:65534::/run/sshd:/usr/sbin/nologin",)
_MODES = {"etc/sudoers": 0o440}
_FOLDER_MODES = {".": 0o755, "root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777}
_NEW_FOLDERS = (
    "etc/ssh/sshd_config.d",
    "usr/lib/fake-gpu",
    "usr/local/bin",
    "usr/local/lib",
    "usr/local/sbin",
    "usr/local/share",
    "var/cache/apt/archives/partial",
    "var/log/journal",
    "var/spool/cron",
)


def build(layer: Path, public_key: str, addresses: Mapping[str, str]) -> None:
    """Make the layer.

    Args:
        layer: the folder, which is not there yet; its filesystem can hold whiteouts.
        public_key: who may log in, as in `authorized_keys`.
        addresses: of the hosts, by name.
    """
    layer.mkdir(mode=0o755)
    _hide(layer)
    for archive in archives():
        unpack(archive, layer)
    for name in _NEW_FOLDERS:
        (layer / name).mkdir(parents=True, exist_ok=True)
    _copy_files(layer)
    _add_users(layer, public_key)
    _configure_systemd(layer)
    names = "".join(f"{address} {name}\n" for name, address in addresses.items())
    (layer / "etc/hosts").write_text(f"127.0.0.1 localhost\n{names}")
    for name, mode in _FOLDER_MODES.items():
        (layer / name).chmod(mode)


def _lines(name: str) -> list[str]:
    lines = (GUEST / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _hide(layer: Path) -> None:
    kept = set(_lines("kept-folders.txt"))
    for entry in Path("/").iterdir():
        mine = layer / entry.name
        if entry.is_symlink() and str(entry.readlink()).startswith("usr/"):
            # Packages have ./lib/…: the link stays, and what it points at is there to unpack into.
            (layer / entry.readlink()).mkdir(parents=True, exist_ok=True)
            mine.symlink_to(entry.readlink())
        elif entry.name not in kept:
            os.mknod(mine, stat.S_IFCHR, os.makedev(0, 0))  # overlayfs: not there
    for name in _lines("emptied-folders.txt"):
        (layer / name).mkdir(parents=True, exist_ok=True)
        os.setxattr(layer / name, "trusted.overlay.opaque", b"y")
    for name in _lines("emptied-files.txt"):
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).touch()


def _copy_files(layer: Path) -> None:
    for source in FILES.rglob("*"):
        if source.is_file():
            name = source.relative_to(FILES)
            (layer / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, layer / name)
            (layer / name).chmod(_MODES.get(str(name), 0o644))
    smi = layer / "usr/bin/nvidia-smi"
    shutil.copyfile(GUEST / "nvidia_smi.py", smi)
    smi.chmod(0o755)


def _add_users(layer: Path, public_key: str) -> None:
    accounts = [
        f"{user}:x:{uid}:{uid}::/home/{user}:/bin/bash" for user, uid in USERS.items() if uid
    ]
    groups = [f"{user}:x:{uid}:" for user, uid in USERS.items() if uid]
    # `*` is no password; `!` would be a locked account, which sshd refuses.
    locks = [f"{user}:*:19000:0:99999:7:::" for user, uid in USERS.items() if uid]
    present = {line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
    added = [line for line in _SYSTEM_USERS if line.split(":")[0] not in present]
    _extend(layer / "etc/passwd", 0o644, [*added, *accounts])
    _extend(layer / "etc/group", 0o644, groups)
    _extend(layer / "etc/shadow", 0o640, locks)
    for user, uid in USERS.items():
        home = layer / ("root" if uid == 0 else f"home/{user}")
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        keys = home / ".ssh/authorized_keys"
        keys.write_text(public_key)
        keys.chmod(0o600)
        for path in (home, home / ".ssh", keys):
            os.chown(path, uid, uid)


def _extend(path: Path, mode: int, lines: list[str]) -> None:
    old = (Path("/") / path.relative_to(path.parents[1])).read_text()
    path.write_text(old + "".join(f"{line}\n" for line in lines))
    path.chmod(mode)


def _configure_systemd(layer: Path) -> None:
    units = layer / "etc/systemd/system"
    wanted = units / "multi-user.target.wants"
    wanted.mkdir()
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    (wanted / "ssh.service").symlink_to("/lib/systemd/system/ssh.service")
    for unit in _lines("masked-units.txt"):
        (units / unit).symlink_to("/dev/null")
    # Every daemon-reload runs all generators, and none of them finds anything in a host.
    masked = layer / "etc/systemd/system-generators"
    masked.mkdir()
    for generator in Path("/lib/systemd/system-generators").iterdir():
        (masked / generator.name).symlink_to("/dev/null")
