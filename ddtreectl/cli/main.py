"""The entry point: builds the application, runs it, turns failures into exit codes."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from ddtreectl import __version__
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.cli import demo, deploy, inventory, logs, render, status, stop
from ddtreectl.cli.context import Context
from ddtreectl.cli.output import error, stderr
from ddtreectl.errors import DdtreectlError, ExitCode

P = ParamSpec("P")

app = typer.Typer(
    name="ddtreectl",
    help="Deploy, swap, watch and roll back speculative-decoding LLM services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddtreectl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    inventory_path: Annotated[
        Path | None,
        typer.Option(
            "--inventory",
            metavar="PATH",
            help="The inventory file. Default: $DDTREECTL_INVENTORY, else ./inventories/local.yaml,"
            " else the one that ddtreectl brings.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Deploy, swap, watch and roll back speculative-decoding LLM services."""
    del version
    ctx.obj = Context(inventory_path)


def _exiting(command: Callable[P, int]) -> Callable[P, None]:
    """A command whose return value is the exit code, in the form that typer wants."""

    @wraps(command)
    def run_command(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(command(*args, **kwargs))

    return run_command


app.command("deploy")(_exiting(deploy.deploy))
app.command("status")(_exiting(status.status))
app.command("rollback")(_exiting(deploy.rollback))
app.command("stop")(_exiting(stop.stop))
app.command("logs")(_exiting(logs.logs))
app.command("demo")(_exiting(demo.demo))
app.command("render")(_exiting(render.render))
inventories = typer.Typer(help="Look at the inventory.", no_args_is_help=True)
inventories.command("check")(_exiting(inventory.check))
inventories.command("schema")(_exiting(inventory.schema))
inventories.command("show")(_exiting(inventory.show))
app.add_typer(inventories, name="inventory")


def run(arguments: list[str]) -> int:
    """Run the command line `arguments`. Returns the exit code."""
    try:
        app(arguments, prog_name="ddtreectl")
    except DdtreectlError as failure:
        error(failure, as_json="--json" in arguments)
        return int(failure.exit_code)
    except (InterruptedByOperatorError, KeyboardInterrupt):
        stderr().print("[bold red]error[/]: interrupted")
    except BrokenPipeError:
        pass  # the reader of a pipe has gone: nobody is left to tell
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ExitCode.DONE)
    return int(ExitCode.FAILED)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
