"""The table that says what each sign of a GPU or its driver leads to, and who says so.

The verdicts on Xids follow the immediate actions of NVIDIA's catalog: RESTART_APP is `restart-app`,
RESET_GPU is `drain-gpu`, RESTART_BM is `cordon-host`, IGNORE is `ok` or, where something is left to
be done at leisure, `degraded`. Where the table departs from it, the row says why.
"""

from dataclasses import dataclass
from typing import Literal

from ddtreectl.gpu.verdict import Verdict

CATALOG = "NVIDIA Xid catalog"
CATALOG_AT = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
RECOVERY = "NVML, GPU recovery action"
SMI = "nvidia-smi(1), RETURN VALUE"
ROWS_REMAPPED = "NVIDIA GPU memory error management"
MEMORY_AT = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
FIELD = "seen in the field"

Origin = Literal["application", "hardware", "driver"]


@dataclass(frozen=True)
class Repeats:
    """When an error that comes again and again leads to something else.

    Attributes:
        more_than: occurrences that are still put up with.
        within: seconds.
        verdict: what more of them lead to.
    """

    more_than: int
    within: float
    verdict: Verdict


@dataclass(frozen=True)
class Row:
    """A sign and what it leads to.

    Attributes:
        verdict: what has to be done.
        origin: whose error it is. One of an application concerns what ran then, for an hour.
        meaning: in words.
        hint: what to do; `{host}` and `{gpu}` stand for names, `{place}` for both.
        source: who says so.
        repeats: what repetition leads to.
        fatal: the verdict where the message itself says `Fatal`.
        group: the verdict where the GPU serves together with others.
    """

    verdict: Verdict
    origin: Origin
    meaning: str
    hint: str
    source: str
    repeats: Repeats | None = None
    fatal: Verdict | None = None
    group: Verdict | None = None


HOUR = 3600.0
_OK, _DEGRADED, _RESTART = Verdict.OK, Verdict.DEGRADED, Verdict.RESTART_APP
_DRAIN, _CORDON = Verdict.DRAIN_GPU, Verdict.CORDON_HOST
_AGAIN = Repeats(3, HOUR, _DRAIN)

RESTART = "restart the service that used {gpu}: `ddtreectl logs {host}` says how it ended"
DRAIN = "`ddtreectl drain {place} --reason …`, reset the GPU, then `ddtreectl uncordon {place}`"
REBOOT = "`ddtreectl cordon {host} --reason …`; the host has to be rebooted"
EXCHANGE = (
    "`ddtreectl drain {place} --reason …`; the card is to be exchanged if a reset does not help"
)
WAIT = "nothing at once; reset the GPU when it is free"
NOTHING = ""


def _xid(
    verdict: Verdict,
    meaning: str,
    action: str,
    *,
    origin: Origin = "hardware",
    hint: str | None = None,
    repeats: Repeats | None = None,
    fatal: Verdict | None = None,
    group: Verdict | None = None,
) -> Row:
    usual = {_OK: NOTHING, _DEGRADED: WAIT, _RESTART: RESTART, _DRAIN: DRAIN, _CORDON: REBOOT}
    chosen = usual[verdict] if hint is None else hint
    return Row(verdict, origin, meaning, chosen, f"{CATALOG}: {action}", repeats, fatal, group)


XIDS: dict[int, Row] = {
    13: _xid(
        _RESTART,
        "graphics engine exception: a fault in the application's kernel",
        "RESTART_APP; the escalation is ddtreectl's own",
        origin="application",
        repeats=_AGAIN,
    ),
    31: _xid(
        _RESTART,
        "memory page fault: the application used an address that it does not have",
        "RESTART_APP; the escalation is ddtreectl's own",
        origin="application",
        repeats=_AGAIN,
    ),
    43: _xid(_OK, "the GPU ended a channel of an application", "IGNORE", origin="application"),
    45: _xid(
        _OK,
        "clean-up after an application that ended; what came before it tells the cause",
        "not on its own",
        origin="application",
    ),
    46: _xid(_DRAIN, "the GPU stopped processing", "RESET_GPU"),
    48: _xid(
        _DRAIN,
        "a memory error that cannot be corrected (double bit)",
        "WORKFLOW_XID_48: drain, reset, service",
    ),
    62: _xid(_DRAIN, "a micro-controller of the GPU halted", "RESET_GPU"),
    63: _xid(_DEGRADED, "a row of memory is to be replaced at the next reset", "IGNORE"),
    64: _xid(_DRAIN, "a row of memory cannot be replaced", "RESET_GPU", hint=EXCHANGE),
    74: _xid(
        _DEGRADED,
        "an error of NVLink",
        "WORKFLOW_NVLINK_ERR; a GPU that serves alone does not use it",
        hint="GPUs that serve together have to be drained",
        group=_DRAIN,
    ),
    79: _xid(_CORDON, "the GPU has fallen off the bus", "RESTART_BM"),
    92: _xid(_DEGRADED, "many memory errors that were corrected", "IGNORE, then CONTACT_SUPPORT"),
    94: _xid(
        _RESTART,
        "a memory error that was contained: only the application that met it is lost",
        "RESTART_APP; the escalation is ddtreectl's own",
        repeats=Repeats(1, 24 * HOUR, _DRAIN),
    ),
    95: _xid(_DRAIN, "a memory error that was not contained", "RESET_GPU"),
    109: _xid(_DRAIN, "a context switch timed out", "RESET_GPU"),
    110: _xid(_DRAIN, "a security fault", "RESET_GPU"),
    119: _xid(_DRAIN, "the GPU's system processor (GSP) does not answer", "RESET_GPU"),
    120: _xid(_DRAIN, "an error of the GPU's system processor (GSP)", "RESET_GPU"),
    121: _xid(_DEGRADED, "an error of the link between chips (C2C)", "IGNORE, CONTACT_SUPPORT"),
    136: _xid(_DRAIN, "a link could not be trained", "RESET_GPU"),
    140: _xid(_DRAIN, "a memory error that was not recovered from", "RESET_GPU"),
    143: _xid(_DRAIN, "the GPU could not be initialised", "RESET_GPU"),
    155: _xid(_DRAIN, "an NVLink software error", "RESET_GPU"),
    156: _xid(_DRAIN, "a resource was retired", "RESET_GPU"),
    158: _xid(_DRAIN, "a fatal timeout", "RESET_GPU"),
    171: _xid(
        _DEGRADED,
        "further detail of a memory error (DRAM)",
        "detail of Xid 48",
        hint=NOTHING,
    ),
    172: _xid(
        _DEGRADED,
        "further detail of a memory error (SRAM)",
        "detail of Xid 48",
        hint=NOTHING,
    ),
} | {
    number: _xid(
        _DEGRADED,
        f"an error of NVLink 5 ({part})",
        "WORKFLOW_NVLINK5_ERR, by the severity in the message",
        hint="GPUs that serve together have to be drained",
        fatal=_DRAIN,
        group=_DRAIN,
    )
    for number, part in {
        144: "SAW",
        145: "RLW",
        146: "TLW",
        147: "TREX",
        148: "NVLPW_CTRL",
        149: "NETIR",
        150: "MSE",
    }.items()
}
"""By number. 154 is not among them: it carries one of the recovery actions."""

UNKNOWN_XID = Row(
    _DEGRADED,
    "driver",
    "an error that this version of ddtreectl does not know",
    "look it up in NVIDIA's catalog",
    "not in the table",
)

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
        _CORDON, "driver", "the driver hangs: nvidia-smi does not answer in time", REBOOT, FIELD
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
