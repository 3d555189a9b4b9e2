"""The commands by name. The module of one is loaded when it is called, so that help is quick."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Command, Context

P = ParamSpec("P")


@dataclass(frozen=True)
class Entry:
    """A command that is not loaded yet.

    Attributes:
        target: `module:function` below `ddtreectl.cli`, or `module:group` for a `typer.Typer`.
        help: what it does, in one line.
    """

    target: str
    help: str


COMMANDS = {
    "deploy": Entry("deploy:deploy", "Bring a service into a slot of each host."),
    "status": Entry("status:status", "Show what runs on a host, or on all hosts."),
    "watch": Entry("watch:watch", "Follow hosts, and print each change once."),
    "rollback": Entry("rollback:rollback", "Go back to the generation that was good before."),
    "stop": Entry("stop:stop", "Stop the service of a slot, and keep it stopped."),
    "cordon": Entry("cordon:cordon", "Have nothing more started on a host or a GPU."),
    "uncordon": Entry("cordon:uncordon", "Let services be started there again."),
    "drain": Entry("drain:drain", "Cordon hosts or GPUs, and stop their services gracefully."),
    "migrate": Entry("migrate:migrate", "Move services to other hosts, and fence their old slots."),
    "logs": Entry("logs:logs", "Print the journal of the service of a slot."),
    "audit": Entry("audit:audit", "Show who has changed what on a host."),
    "lock": Entry("lock:group", "Look at the lock of a host, or break it."),
    "prune": Entry("prune:prune", "Remove old generations and environments of a host."),
    "demo": Entry("demo:demo", "Deploy the bundled model and compare its modes."),
    "doctor": Entry("doctor:doctor", "Check everything on a host that services need."),
    "router": Entry("router:group", "Deploy, watch and stop what clients of a fleet speak to."),
    "provision": Entry("provision:provision", "Build an environment on a host, and verify it."),
    "render": Entry("render:render", "Print the unit of a service; asks no host."),
    "inventory": Entry("inventory:group", "Look at the inventory."),
}


def exiting(command: Callable[P, int]) -> Callable[P, None]:
    """A command whose return value is the exit code, in the form that typer wants."""

    @wraps(command)
    def run_command(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(command(*args, **kwargs))

    return run_command


def load(name: str) -> "Command":
    """Import a command and build its parser."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    found = getattr(import_module(f"ddtreectl.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        command = exiting(found)
        found = typer.Typer(add_completion=False, rich_markup_mode=None)
        found.command(name)(command)
    return get_command(found)


class Commands(TyperGroup):
    """All commands: listed from the table, loaded one at a time."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in COMMANDS.items():
            self.add_command(
                TyperCommand(name, callback=None, help=entry.help, rich_markup_mode=None)
            )

    def resolve_command(
        self, ctx: "Context", args: list[str]
    ) -> "tuple[str | None, Command | None, list[str]]":
        """See click: the name, the command, and the words that are left for it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load(name), rest
