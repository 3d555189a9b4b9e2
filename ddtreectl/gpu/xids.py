"""What each Xid of the kernel log leads to.

The verdicts follow the immediate actions of NVIDIA's catalog, as of October 2025: RESTART_APP is
`restart-app`, RESET_GPU is `drain-gpu`, RESTART_BM is `cordon-host`, IGNORE is `ok` or, where
something is left to be done at leisure, `degraded`. Where a row departs from it, it says why.
"""

from ddtreectl.gpu.row import (
    DRAIN,
    EXCHANGE,
    HOUR,
    NOTHING,
    REBOOT,
    RESTART,
    WAIT,
    Origin,
    Repeats,
    Row,
)
from ddtreectl.gpu.verdict import Verdict

CATALOG = "NVIDIA Xid catalog"
CATALOG_AT = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

_OK, _DEGRADED, _RESTART = Verdict.OK, Verdict.DEGRADED, Verdict.RESTART_APP
_DRAIN, _CORDON = Verdict.DRAIN_GPU, Verdict.CORDON_HOST
_AGAIN = Repeats(3, HOUR, _DRAIN)
_OWN = "RESTART_APP; the escalation is ddtreectl's own"
_TOGETHER = "GPUs that serve together have to be drained"


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


def _application(meaning: str) -> Row:
    return _xid(_RESTART, meaning, _OWN, origin="application", repeats=_AGAIN)


def _ignored(meaning: str, origin: Origin = "driver") -> Row:
    return _xid(_OK, meaning, "IGNORE", origin=origin)


_COPY_ENGINE = dict.fromkeys(
    (*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)), "copy engine"
)
_VIDEO = dict.fromkeys((60, 68, 83, 84, 88, 89, 96, 97, 98), "video decoder")
_IMAGES = dict.fromkeys((82, *range(99, 106)), "image decoder")
_OPTICAL_FLOW = dict.fromkeys((86, 139), "optical flow engine")
_PUSH_BUFFER = dict.fromkeys((11, 25, 32, 80), "an invalid or corrupted stream of commands")
_ENGINES = _COPY_ENGINE | _VIDEO | _IMAGES | _OPTICAL_FLOW

XIDS: dict[int, Row] = (
    {
        8: _application("the GPU stopped processing a channel"),
        37: _ignored("an error of the driver's firmware"),
        38: _ignored("an error of the driver's firmware (watchdog)"),
        44: _ignored("a fault during a context switch"),
        54: _xid(
            _DRAIN,
            "the auxiliary power of the card is not connected",
            "CHECK_MECHANICALS",
            hint="`ddtreectl drain {place} --reason …`; check the power cable of the card",
        ),
        66: _ignored("an illegal access by the driver"),
        67: _ignored("an illegal access by the driver (verification)"),
        69: _application("an error of a class of the graphics engine"),
        78: _xid(
            _DEGRADED, "a virtual GPU could not be started", "UPDATE_SWFW", hint="update the driver"
        ),
        93: _xid(
            _DEGRADED,
            "the infoROM was written more often than it is made for",
            "IGNORE, then CONTACT_SUPPORT",
            hint=NOTHING,
        ),
        106: _ignored("a test message of the management bus"),
        107: _ignored("a silent test message of the management bus"),
        137: _xid(
            _DEGRADED,
            "an access through NVLink that was not allowed",
            "IGNORE; XID_137_FLOW",
            hint="see what the other GPUs of the link say",
            group=_DRAIN,
        ),
        141: _ignored("an error of a fast path of CUDA", "application"),
        152: _ignored("an error of the deep learning accelerator's memory unit"),
        153: _ignored("the deep learning accelerator timed out"),
        157: _xid(_DEGRADED, "a resource could not be retired", "IGNORE, then CONTACT_SUPPORT"),
        160: _xid(_DEGRADED, "a channel of memory was retired", "IGNORE, INVESTIGATE_SW"),
        161: _xid(_DEGRADED, "a channel of memory could not be retired", "IGNORE, INVESTIGATE_SW"),
        13: _application("graphics engine exception: a fault in the application's kernel"),
        31: _application(
            "memory page fault: the application used an address that it does not have"
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
            hint=_TOGETHER,
            group=_DRAIN,
        ),
        79: _xid(_CORDON, "the GPU has fallen off the bus", "RESTART_BM"),
        92: _xid(
            _DEGRADED, "many memory errors that were corrected", "IGNORE, then CONTACT_SUPPORT"
        ),
        94: _xid(
            _RESTART,
            "a memory error that was contained: only the application that met it is lost",
            _OWN,
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
    }
    | {
        number: _xid(
            _DEGRADED,
            f"an error of NVLink 5 ({part})",
            "WORKFLOW_NVLINK5_ERR, by the severity in the message",
            hint=_TOGETHER,
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
    | {number: _application(f"an error of the {engine}") for number, engine in _ENGINES.items()}
    | {number: _application(meaning) for number, meaning in _PUSH_BUFFER.items()}
)
"""By number. 154 is not among them: it carries one of the recovery actions."""

UNKNOWN = Row(
    _DEGRADED,
    "driver",
    "an error that this version of ddtreectl does not know",
    "look it up in NVIDIA's catalog",
    "not in the table",
)
