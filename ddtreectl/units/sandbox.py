"""The sandbox of a unit, for a command that is to run as its service would."""

from collections.abc import Sequence

_SANDBOX = (
    "AmbientCapabilities",
    "BindPaths",
    "BindReadOnlyPaths",
    "CapabilityBoundingSet",
    "DeviceAllow",
    "DevicePolicy",
    "DynamicUser",
    "Group",
    "InaccessiblePaths",
    "KeyringMode",
    "LimitCORE",
    "LimitMEMLOCK",
    "LimitNOFILE",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "NoNewPrivileges",
    "Private",
    "ProcSubset",
    "Protect",
    "RemoveIPC",
    "Restrict",
    "SupplementaryGroups",
    "SystemCall",
    "UMask",
    "User",
)
"""Beginnings of the settings that make a sandbox. What a unit writes to (StateDirectory=,
ReadWritePaths=) belongs to its generation, which need not exist yet; and its variables mark its
processes as those of the slot, which no other process may seem to be."""

_SCHEDULING = ("RestartSec", "Restart=", "RestrictNetworkInterfaces")


def properties(unit_text: str) -> list[str]:
    """The settings of [Service] that restrict what the service may do, each as `Key=value`."""
    section = unit_text.partition("\n[Service]\n")[2].partition("\n[")[0]
    return [
        line
        for line in section.splitlines()
        if "=" in line and line.startswith(_SANDBOX) and not line.startswith(_SCHEDULING)
    ]


def command(argv: Sequence[str], unit_text: str, *, limit: float) -> list[str]:
    """`argv` in the sandbox of a unit, with its own stdin, stdout and exit status.

    Args:
        argv: an absolute path and arguments.
        unit_text: the unit.
        limit: seconds after which systemd ends it, whether or not anybody waits.
    """
    settings = [f"RuntimeMaxSec={limit:.0f}", *properties(unit_text)]
    return [
        "systemd-run",
        *("--quiet", "--wait", "--pipe", "--collect", "--service-type=exec"),
        *(word for setting in settings for word in ("--property", setting)),
        "--",
        *argv,
    ]


NOT_MADE = range(200, 244)
"""Exit statuses that say that the sandbox could not be made (systemd.exec(5), "Process exit
codes")."""
