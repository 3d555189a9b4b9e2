"""The table that says what each sign of a GPU or its driver leads to, and who says so."""

from ddtreectl.gpu.row import DRAIN, EXCHANGE, REBOOT, WAIT, Row
from ddtreectl.gpu.verdict import Verdict
from ddtreectl.gpu.xids import UNKNOWN, XIDS

RECOVERY = "NVML, GPU recovery action"
SMI = "nvidia-smi(1), RETURN VALUE"
ROWS_REMAPPED = "NVIDIA GPU memory error management"
MEMORY_AT = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
SWITCHES = "NVIDIA Fabric Manager user guide, NVSwitch SXid errors"
FIELD = "seen in the field"

_DEGRADED, _DRAIN, _CORDON = Verdict.DEGRADED, Verdict.DRAIN_GPU, Verdict.CORDON_HOST

__all__ = ["DRIVER", "EXIT_CODES", "FAULTS", "RECOVERY_ACTIONS", "UNKNOWN", "XIDS"]

RECOVERY_ACTIONS: dict[str, Row] = {
    "reset": Row(_DRAIN, "driver", "the driver wants the GPU reset", DRAIN, RECOVERY),
    "reboot": Row(_CORDON, "driver", "the driver wants the host rebooted", REBOOT, RECOVERY),
    "drain-p2p": Row(
        _DEGRADED,
        "driver",
        "the driver wants no more traffic between GPUs",
        "GPUs that serve together have to be drained, and reset together",
        RECOVERY,
        group=_DRAIN,
    ),
    "drain-and-reset": Row(
        _DRAIN, "driver", "the driver wants the GPU drained and reset", DRAIN, RECOVERY
    ),
    "bus-reset": Row(_CORDON, "driver", "the driver wants the bus reset", REBOOT, RECOVERY),
    "recover-imex": Row(
        _DEGRADED,
        "driver",
        "the driver wants the IMEX domain recovered",
        "restart the IMEX service of the domain",
        RECOVERY,
        group=_DRAIN,
    ),
    "other": Row(
        _DEGRADED,
        "driver",
        "the driver wants something that this version of ddtreectl does not know",
        "see `nvidia-smi -q` on the host",
        RECOVERY,
    ),
}

FAULTS: dict[str, Row] = {
    "lost": Row(_CORDON, "hardware", "the GPU is lost", REBOOT, f"{SMI}: 15"),
    "requires-reset": Row(_DRAIN, "hardware", "the GPU requires a reset", DRAIN, RECOVERY),
    "unknown-error": Row(
        _DRAIN, "hardware", "the driver cannot read the GPU (unknown error)", DRAIN, FIELD
    ),
    "no-handle": Row(
        _CORDON,
        "hardware",
        "the driver cannot open the GPU, which breaks every query of all GPUs",
        REBOOT,
        FIELD,
    ),
    "hung": Row(_CORDON, "driver", "the driver hangs on the GPU", REBOOT, FIELD),
    "unlisted": Row(
        _CORDON,
        "hardware",
        "the kernel has the GPU and nvidia-smi does not list it, so that indices have moved",
        REBOOT,
        FIELD,
    ),
    "silent": Row(
        _DEGRADED,
        "driver",
        "the driver does not tell how much memory the GPU has",
        "see `nvidia-smi -q` on the host",
        FIELD,
    ),
    "ecc": Row(
        _DEGRADED,
        "hardware",
        "memory errors that were not corrected, since the driver was loaded",
        WAIT,
        ROWS_REMAPPED,
    ),
    "remap-pending": Row(
        _DEGRADED, "hardware", "rows of memory are replaced at the next reset", WAIT, ROWS_REMAPPED
    ),
    "remap-failed": Row(
        _DRAIN, "hardware", "rows of memory could not be replaced", EXCHANGE, ROWS_REMAPPED
    ),
    "inforom": Row(
        _DEGRADED,
        "hardware",
        "the infoROM of the GPU is corrupt; it works all the same",
        "have the card's infoROM repaired when it is serviced",
        f"{SMI}: 14",
    ),
}
"""Signs of one GPU in what nvidia-smi says."""

DRIVER: dict[str, Row] = {
    "hung": Row(
        _CORDON,
        "driver",
        "the driver hangs: nvidia-smi does not answer in time",
        f"{REBOOT}. Where nvidia-smi is only slow, `nvidia-smi -pm 1` keeps the driver loaded",
        FIELD,
    ),
    "mismatch": Row(
        _CORDON,
        "driver",
        "the driver was upgraded and the old kernel module is still loaded",
        REBOOT,
        f"{SMI}: 18",
    ),
    "no-driver": Row(
        _CORDON,
        "driver",
        "the driver is not loaded",
        "load it (`modprobe nvidia`) or reboot the host",
        f"{SMI}: 9",
    ),
    "no-devices": Row(_CORDON, "hardware", "the driver finds no GPU", REBOOT, f"{SMI}: 6"),
    "no-library": Row(
        _CORDON,
        "driver",
        "the driver's library is not installed",
        "install the libraries of the driver that is loaded",
        f"{SMI}: 12",
    ),
    "crashed": Row(
        _CORDON,
        "driver",
        "nvidia-smi crashes, as it does with some drivers when a GPU is lost",
        REBOOT,
        FIELD,
    ),
    "failed": Row(
        _DEGRADED,
        "driver",
        "nvidia-smi fails, so that nothing is known of the GPUs",
        "run `nvidia-smi` on the host",
        FIELD,
    ),
    "absent": Row(
        _DEGRADED,
        "driver",
        "nvidia-smi is not installed, so that nothing is known of the GPUs",
        "install the NVIDIA driver with its tools",
        FIELD,
    ),
    "nvswitch": Row(
        _DEGRADED,
        "hardware",
        "a fatal error of an NVSwitch",
        "GPUs that serve together have to be drained, and reset together with the switches",
        SWITCHES,
        group=_DRAIN,
    ),
    "unread-log": Row(
        _DEGRADED,
        "driver",
        "the kernel log cannot be read, so that errors of GPUs go unseen",
        "run `journalctl -k -b` and `dmesg` on the host",
        FIELD,
    ),
    "missing": Row(
        _CORDON,
        "hardware",
        "GPUs are missing, so that the indices of others have moved",
        REBOOT,
        FIELD,
    ),
}
"""Signs of the driver as a whole, or of the host."""

EXIT_CODES = {6: "no-devices", 9: "no-driver", 12: "no-library", 13: "mismatch", 18: "mismatch"}
"""What exit codes of nvidia-smi say of the driver."""
