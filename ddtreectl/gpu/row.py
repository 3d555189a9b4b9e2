"""A row of the table of signs, and the words that many rows share."""

from dataclasses import dataclass
from typing import Literal

from ddtreectl.gpu.verdict import Verdict

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
RESTART = "restart the service that used {gpu}: `ddtreectl logs {host}` says how it ended"
DRAIN = "`ddtreectl drain {place} --reason …`, reset the GPU, then `ddtreectl uncordon {place}`"
REBOOT = "`ddtreectl cordon {host} --reason …`; the host has to be rebooted"
EXCHANGE = (
    "`ddtreectl drain {place} --reason …`; the card is to be exchanged if a reset does not help"
)
WAIT = "nothing at once; reset the GPU when it is free"
NOTHING = ""
