"""The state of hosts and of the router before them, put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ddtreectl.apply.router import Router
from ddtreectl.cli import router_table, status_table
from ddtreectl.errors import DdtreectlError, ExitCode
from ddtreectl.facts.router import RouterFacts
from ddtreectl.plan.status import HostStatus, exit_code, moved_away

Seen = Mapping[str, HostStatus | DdtreectlError]


@dataclass(frozen=True)
class View:
    """What was seen at one time.

    Attributes:
        hosts: those that were looked at, with what the router knows of where services have gone.
        failures: the others.
        kept: cordons that the operator keeps, by host.
        router: of the fleet, or None.
        routed: what it has, or None.
    """

    hosts: Sequence[HostStatus]
    failures: Mapping[str, DdtreectlError]
    kept: status_table.Kept
    router: Router | None = None
    routed: RouterFacts | None = None

    @classmethod
    def of(
        cls,
        seen: Seen,
        kept: status_table.Kept,
        router: Router | None = None,
        routed: RouterFacts | None = None,
    ) -> Self:
        """Put together what each host has told, or why it has not, and the router."""
        away = (routed.moved if routed else None) or {}
        return cls(
            [moved_away(found, away) for found in seen.values() if isinstance(found, HostStatus)],
            {name: error for name, error in seen.items() if isinstance(error, DdtreectlError)},
            kept,
            router,
            routed,
        )

    @property
    def remarks(self) -> list[str]:
        """What is wrong between hosts and router."""
        if self.router is None or self.routed is None:
            return []
        return list(router_table.remarks(self.router, self.routed, self.hosts))

    def table(self) -> RenderableType:
        """It for a reader."""
        shown = status_table.table(self.hosts, self.failures, self.kept)
        if self.router is None or self.routed is None:
            return shown
        marked = [Text.from_markup(f"[yellow]router[/]: {escape(text)}") for text in self.remarks]
        return Group(shown, router_table.table(self.router, self.routed), *marked)

    def document(self) -> dict[str, object]:
        """It as JSON."""
        found = status_table.document(self.hosts, self.failures, self.kept)
        if self.router is not None and self.routed is not None:
            routed = router_table.document(self.router, self.routed)
            found["router"] = {**routed, "remarks": self.remarks}
        return found

    def exit_code(self) -> ExitCode:
        """What it means for a shell."""
        code = exit_code(self.hosts, self.failures)
        if code is not ExitCode.DONE or self.routed is None:
            return code
        fine = not self.remarks and router_table.exit_code(self.routed) is ExitCode.DONE
        return ExitCode.DONE if fine else ExitCode.FAILED
