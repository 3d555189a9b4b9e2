"""What a service may do on its host: the settings that confine its unit, and why each is as it is.

What stays open is said here, beside what is closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

ADDRESS_FAMILIES = ("AF_UNIX", "AF_INET", "AF_INET6")
NVIDIA_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")


@dataclass(frozen=True)
class Setting:
    """One setting of [Service].

    Attributes:
        name: its key.
        value: its value.
        reason: why, for whoever reads the unit.
    """

    name: str
    value: str
    reason: str = ""

    def __str__(self) -> str:
        """The line in a unit."""
        return f"{self.name}={self.value}"


def settings(
    minors: Sequence[int] | None, families: Sequence[str] = ADDRESS_FAMILIES
) -> list[Setting]:
    """What confines a service.

    Args:
        minors: the numbers N of the /dev/nvidiaN that it may open; None for a service that needs
            no GPU.
        families: the kinds of sockets that it may open.
    """
    return [
        Setting("DynamicUser", "yes", "A user of its own, which owns nothing but the cache below."),
        *_files(),
        *_devices(minors),
        *_kernel(families),
    ]


def lines(confinement: Sequence[Setting]) -> list[str]:
    """The settings as lines of a unit, each after its reason."""
    found = []
    for setting in confinement:
        found += [f"# {setting.reason}"] if setting.reason else []
        found.append(str(setting))
    return found


def _files() -> list[Setting]:
    return [
        Setting("ProtectSystem", "strict", "Everything is read-only but /tmp, /dev and the cache."),
        Setting("ProtectHome", "read-only", "Models may lie in a home folder."),
        Setting("PrivateTmp", "yes"),
        Setting("UMask", "0077"),
    ]


def _devices(minors: Sequence[int] | None) -> list[Setting]:
    if minors is None:
        return [Setting("PrivateDevices", "yes", "It computes on the CPU.")]
    nodes = [f"/dev/nvidia{minor}" for minor in minors]
    return [
        Setting("DevicePolicy", "closed", "Its GPU, the two nodes that CUDA needs, no other."),
        *(Setting("DeviceAllow", f"{node} rw") for node in [*nodes, *NVIDIA_CONTROL]),
    ]


def _kernel(families: Sequence[str]) -> list[Setting]:
    calls = "It may do what services do, with @resources to pin threads and place memory."
    return [
        Setting("CapabilityBoundingSet", ""),
        Setting("AmbientCapabilities", ""),
        Setting("NoNewPrivileges", "yes"),
        Setting("ProtectClock", "yes"),
        Setting("ProtectControlGroups", "yes"),
        Setting("ProtectHostname", "yes"),
        Setting("ProtectKernelLogs", "yes"),
        Setting("ProtectKernelModules", "yes"),
        Setting("ProtectKernelTunables", "yes"),
        Setting("ProtectProc", "invisible"),
        Setting("ProcSubset", "all", "The driver's files and /proc/meminfo are in /proc."),
        Setting("RestrictAddressFamilies", " ".join(families)),
        Setting("RestrictNamespaces", "yes"),
        Setting("RestrictRealtime", "yes"),
        Setting("RestrictSUIDSGID", "yes"),
        Setting("LockPersonality", "yes"),
        Setting("MemoryDenyWriteExecute", "no", "CUDA and Triton make code as they run."),
        Setting("RemoveIPC", "yes"),
        Setting("SystemCallArchitectures", "native"),
        Setting("SystemCallFilter", "@system-service", calls),
        Setting("SystemCallFilter", "~@privileged @swap @reboot"),
        Setting("SystemCallErrorNumber", "EPERM", "An unknown call is an error, not the end."),
    ]
