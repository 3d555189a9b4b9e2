"""The same work on several targets: many hosts at a time, the targets of one in their order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError
from ddtreectl.hosts.pool import DEADLINE, on_each
from ddtreectl.inventory.select import Target

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """A target with a session."""

    target: Target
    session: Session


def on_targets(
    entries: Sequence[Opened],
    work: Callable[[Opened], T],
    *,
    lock_wait: int = 0,
) -> list[tuple[Target, T | DdtreectlError]]:
    """What `work` makes of each target, or why it cannot; in the order of the targets.

    A host that does not end in time, as `hosts.pool` bounds it, counts as unreachable.

    Args:
        entries: the targets.
        work: what is done to each.
        lock_wait: seconds that each target may wait for another operator, besides.
    """
    by_host: dict[str, list[Opened]] = {}
    for entry in entries:
        by_host.setdefault(entry.target.host_name, []).append(entry)

    def of_host(name: str) -> list[T | DdtreectlError]:
        found: list[T | DdtreectlError] = []
        for entry in by_host[name]:
            try:
                found.append(work(entry))
            except DdtreectlError as error:
                found.append(error)
        return found

    outcomes: dict[str, T | DdtreectlError] = {}
    longest = max(map(len, by_host.values()), default=0) * lock_wait
    for name, found in on_each(list(by_host), of_host, deadline=DEADLINE + longest):
        of_each = [found] * len(by_host[name]) if isinstance(found, DdtreectlError) else found
        for entry, outcome in zip(by_host[name], of_each, strict=True):
            outcomes[str(entry.target)] = outcome
    return [(entry.target, outcomes[str(entry.target)]) for entry in entries]
