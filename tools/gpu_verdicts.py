"""The page docs/reference/gpu-verdicts.md, from the table in the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ddtreectl.gpu import table
from ddtreectl.gpu.row import HOUR, Row
from ddtreectl.gpu.xids import CATALOG_AT

INTRO = """What `ddtreectl status`, `doctor` and `watch` say of GPUs, and what follows from it.

| verdict | meaning |
|---|---|
| `ok` | nothing is wrong |
| `degraded` | it works, and something is to be done at leisure |
| `restart-app` | the service that used the GPU has to be started anew |
| `drain-gpu` | nothing may be started on the GPU until it was reset; a deploy there is refused |
| `cordon-host` | nothing may be started on the host until it was rebooted; a deploy is refused |

Errors of an application concern what ran then: they are history once that process has ended, or
after an hour. All other errors of the kernel log count until the host is rebooted, or until
`ddtreectl uncordon` says that they were dealt with.

Sources: the [catalog of Xids]({catalog}), [memory error management]({memory}), the manual page of
nvidia-smi; what none of them says was seen in the field."""


def page(note: str) -> Iterator[str]:
    """The parts of the page; `note` says where it comes from."""
    yield "# Verdicts on GPUs"
    yield note
    yield INTRO.format(catalog=CATALOG_AT, memory=table.MEMORY_AT)
    yield "## Xid errors of the kernel log"
    yield (
        "An Xid that is not here is `degraded`. A GPU that falls off the bus without a number "
        "counts as 79, and 154 as the recovery action that it names."
    )
    yield _table(("Xid", table.XIDS))
    yield "## Recovery actions, as the driver names them"
    yield _table(("action", table.RECOVERY_ACTIONS))
    yield "## What nvidia-smi says of a GPU"
    yield _table(("sign", table.FAULTS))
    yield "## What is said of the driver or the host"
    yield _table(("sign", table.DRIVER))


def _table(named: tuple[str, Mapping[int, Row] | Mapping[str, Row]]) -> str:
    title, rows = named
    lines = [f"| {title} | meaning | verdict | source |", "|---|---|---|---|"]
    lines += [_line(str(key), row) for key, row in sorted(rows.items(), key=_order)]
    return "\n".join(lines)


def _order(item: tuple[object, Row]) -> tuple[int, str]:
    key = item[0]
    return (key, "") if isinstance(key, int) else (0, str(key))


def _line(key: str, row: Row) -> str:
    return f"| {key} | {row.meaning} | {', '.join(_verdicts(row))} | {row.source} |"


def _verdicts(row: Row) -> Iterable[str]:
    yield f"`{row.verdict}`"
    if row.repeats:
        hours = f"{row.repeats.within / HOUR:g} h"
        yield f"`{row.repeats.verdict}` when there are more than {row.repeats.more_than} in {hours}"
    if row.fatal:
        yield f"`{row.fatal}` when the message says Fatal"
    if row.group:
        yield f"`{row.group}` for a GPU that serves together with others"
