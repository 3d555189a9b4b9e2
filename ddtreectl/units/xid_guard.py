"""The command by which a unit looks, before it starts, at what the kernel log says of its GPU.

The limits are those of the table of Xids: what keeps a deploy away by its number keeps the unit
down too, and nobody has to be there for it.
"""

from collections import defaultdict
from collections.abc import Sequence

from ddtreectl import bundle
from ddtreectl.facts.gpu import Gpu
from ddtreectl.gpu.xids import XIDS

NAME = "xid_guard.py"
DRAINED = 75
"""The one exit status of the guard that keeps a service from starting."""

# Whatever else goes wrong, a missing interpreter included, the service starts.
_SHELL = f'"$0" -IS "$@"; [ $? -ne {DRAINED} ]'


def script() -> str:
    """The guard itself, which a generation carries."""
    return (bundle.templates() / NAME).read_text()


def argv(python: str, folder: str, root: str, unit: str, gpus: Sequence[Gpu]) -> list[str]:
    """The words of `ExecCondition=`.

    Args:
        python: an interpreter.
        folder: of the generation, where the guard is.
        root: the folder of records, where cordons are.
        unit: the unit's name.
        gpus: its cards.
    """
    cards = [f"{gpu.index}@{gpu.uuid}@{gpu.pci or '-'}" for gpu in gpus if gpu.uuid]
    words = [root, unit, limits(group=len(cards) > 1), *cards]
    return ["/bin/sh", "-c", _SHELL, python, f"{folder}/{NAME}", *words]


def limits(*, group: bool) -> str:
    """How many of each Xid are put up with, as the guard reads it.

    Args:
        group: whether the GPU serves together with others.
    """
    rules: dict[str, list[int]] = defaultdict(list)
    for number, row in sorted(XIDS.items()):
        verdict = (row.group if group else None) or row.verdict
        if verdict.takes_no_service:
            rules["0/"].append(number)
        elif row.repeats is not None and row.repeats.verdict.takes_no_service:
            rules[f"{row.repeats.more_than}/{row.repeats.within:.0f}"].append(number)
    return ";".join(f"{limit}={','.join(map(str, found))}" for limit, found in rules.items())
