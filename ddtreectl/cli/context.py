"""What every command needs: the inventory, and a session with a host."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddtreectl import bundle
from ddtreectl.errors import UsageError

if TYPE_CHECKING:
    from ddtreectl.apply.router import Router
    from ddtreectl.apply.session import Session
    from ddtreectl.inventory.model import Inventory
    from ddtreectl.inventory.service import Budget

VARIABLE = "DDTREECTL_INVENTORY"
DEFAULT = "local.yaml"


LONGEST_REASON = 300


def _one_line(reason: str) -> str:
    """A reason is shown beside what others wrote, so it may not look like more lines of that."""
    if not reason.strip():
        raise UsageError("`--reason` is empty")
    if len(reason.splitlines()) > 1:
        raise UsageError("`--reason` has several lines", hint="say it in one")
    if len(reason) > LONGEST_REASON:
        raise UsageError(f"`--reason` is longer than {LONGEST_REASON} characters")
    return reason.strip()


def read_budget(text: str | None) -> "Budget | None":
    """What `--budget` says.

    Raises:
        UsageError: neither a number nor `auto`.
    """
    if text is None:
        return None
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"`--budget` takes a number or `auto`, got `{text}`") from None


Reason = Annotated[
    str,
    typer.Option(
        "--reason", callback=_one_line, help="Why; kept on the host, and shown to others."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
HostName = Annotated[str, typer.Argument(metavar="HOST", help="A host of the inventory.")]
SlotName = Annotated[
    str | None, typer.Option("--slot", help="The slot, where the host has several.")
]
Gpu = Annotated[int | None, typer.Option("--gpu", help="The slot that has this GPU.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
LockWait = Annotated[
    int,
    typer.Option(
        "--lock-wait",
        min=0,
        max=86400,
        metavar="SECONDS",
        help="Wait that long for another operator to finish.",
    ),
]
Port = Annotated[int | None, typer.Option("--port", help="The slot that has this port.")]


@dataclass
class Context:
    """Global options of the command line."""

    inventory_path: Path | None = None

    def path(self) -> Path:
        """The inventory file: `--inventory`, $DDTREECTL_INVENTORY, ./inventories, the packaged."""
        if self.inventory_path:
            return self.inventory_path
        if named := os.environ.get(VARIABLE):
            return Path(named)
        here = Path("inventories") / DEFAULT
        return here if here.is_file() else bundle.inventories() / DEFAULT

    def inventory(self) -> "Inventory":
        """The inventory."""
        from ddtreectl.inventory.loader import load

        return load(self.path())

    def host_name(self, inventory: "Inventory", name: str | None) -> str:
        """The host that is named, or the only one."""
        from ddtreectl.inventory.select import find_host

        if name:
            find_host(inventory, name)
            return name
        if len(inventory.hosts) == 1:
            return next(iter(inventory.hosts))
        raise UsageError(
            "this inventory has several hosts", hint=f"name one of: {', '.join(inventory.hosts)}"
        )

    def session(
        self,
        inventory: "Inventory",
        name: str,
        say: Callable[[str], None] | None = None,
        *,
        behind: bool = True,
    ) -> "Session":
        """A session with a host.

        Args:
            inventory: the inventory.
            name: the host.
            say: shows its progress in lines, by default on stderr, with a bar on a terminal.
            behind: whether its services are behind the router of the fleet, if there is one.
        """
        from ddtreectl.apply.interrupts import Interrupts
        from ddtreectl.apply.kept_cordons import KeptCordons
        from ddtreectl.apply.kept_moves import KeptMoves, KeptServices
        from ddtreectl.apply.operator import current
        from ddtreectl.apply.report import Report
        from ddtreectl.apply.session import Session
        from ddtreectl.cli.output import progress, progress_bar
        from ddtreectl.hosts.connect import connect
        from ddtreectl.inventory.select import find_host

        bar = None if say else progress_bar()
        say = say or progress
        entry = find_host(inventory, name)
        return Session(
            host=connect(name, entry, inventory.connection(entry)),
            entry=entry,
            operator=current(),
            report=Report(say, bar),
            interrupts=Interrupts(say),
            keys={
                slot_name: settings.api_key
                for slot_name, slot in entry.slots.items()
                if (settings := inventory.settings(slot)).api_key
            },
            cordons=KeptCordons(self.path()).of(name),
            router=self.router(inventory, say) if behind else None,
            moves=KeptMoves(self.path()).of(name),
            seen=partial(KeptServices(self.path()).note, name),
            fenced=KeptMoves(self.path()).forget,
        )

    def router(
        self, inventory: "Inventory", say: Callable[[str], None] | None = None
    ) -> "Router | None":
        """The router of the fleet, or None where the inventory has none."""
        from ddtreectl.apply.router import Router
        from ddtreectl.inventory.workers import router_urls, workers

        settings = inventory.router
        if settings is None:
            return None
        opened = partial(self.session, inventory, settings.host, say, behind=False)
        return Router(settings, workers(inventory), router_urls(inventory), opened)


def context(ctx: typer.Context) -> Context:
    """The global options of the command line that `ctx` belongs to."""
    found = ctx.find_object(Context)
    return found if found is not None else Context()
