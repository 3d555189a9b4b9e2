"""When a service of a GPU may start: never on a card that is gone, and ever later after failures.

A process that dies of an application's Xid starts again. One whose GPU has fallen off the bus would
die at each start, so the start is skipped, which systemd does not try again. Nothing here asks
nvidia-smi or opens a GPU, which can hang for ever: the files of the driver and the PCI
configuration space of the card tell enough.
"""

from collections.abc import Sequence

from ddtreectl.facts.gpu import Gpu

BACK_OFF = (0, 20, 60, 150)
"""Seconds before the first automatic restart, the second and so on, on top of RestartSec=."""

# A GPU that nothing has opened since boot has its UUID in question marks, so its place has to do.
# Of a GPU that fell off the bus the configuration space reads as ones.
_PRESENT = (
    "d=/proc/driver/nvidia/gpus",
    '[ -d $d ] || { echo "the GPU driver is not loaded" >&2; exit 255; }',
    "for card in @CARDS@; do u=${card%@*} p=${card#*@}",
    (
        'f=$(grep -lsF "$u" $d/*/information) || f=$(grep -ls "UUID:.*?" "$d/$p/information") || '
        '{ echo "$u is not there" >&2; exit 1; }'
    ),
    "a=${f%/information} a=${a##*/}",
    (
        'case $(od -An -N4 -tx4 "/sys/bus/pci/devices/$a/config" 2>/dev/null) in '
        '*ffffffff) echo "$u has fallen off the bus" >&2; exit 1;; esac'
    ),
    "done",
)


def condition(gpus: Sequence[Gpu]) -> list[str]:
    """The command whose exit status says whether the cards are there: 0, or 1 for a lost one.

    255, which systemd takes for a failure that is tried again, says that no driver is loaded yet.
    """
    cards = [f"{gpu.uuid}@{gpu.pci or '-'}.0" for gpu in gpus if gpu.uuid]
    return ["/bin/sh", "-c", "; ".join(_PRESENT).replace("@CARDS@", " ".join(cards))]


def back_off(unit: str) -> list[str]:
    """The command that waits before an automatic restart of `unit`, longer each time."""
    waits = "".join(f"{n}) s={s};; " for n, s in enumerate(BACK_OFF[:-1], 1))
    script = (
        f"case $(systemctl show -p NRestarts --value {unit}) in 0|'') s=0;; {waits}"
        f"*) s={BACK_OFF[-1]};; esac; exec sleep $s"
    )
    return ["/bin/sh", "-c", script]
