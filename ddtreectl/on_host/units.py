"""The service manager, and the files of units."""

import os

from ddtreectl.on_host.commands import there

SYSTEMD = "/run/systemd/system"


def tell_systemd() -> None:
    """Whether systemd runs here, and where its `systemd-run` is."""
    if os.path.isdir(SYSTEMD):
        print("systemd")
        print(there("systemd-run") or "")


def tell_unit_files(units: "list[str]", marker: str) -> None:
    """Print the unit files that exist, each after a line that names it.

    One that is masked, a link to /dev/null, is no file.
    """
    for path in units:
        if not os.path.isfile(path):
            continue
        try:
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                text = file.read()
        except OSError:
            continue
        print(marker + path, text, sep="\n", end="" if text.endswith("\n") else "\n")
