"""The entry point: builds the application, runs it, turns failures into exit codes."""

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from ddtreectl import __version__
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.cli import demo, deploy, inventory, logs, render, status, stop
from ddtreectl.cli.context import Context
from ddtreectl.cli.output import error, stderr
from ddtreectl.errors import MISTAKE, TRACEBACK, DdtreectlError, ExitCode, UsageError

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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know no `τ`
    try:
        _only_text(arguments)
        app(arguments, prog_name="ddtreectl")
    except DdtreectlError as failure:
        return _failed(failure, as_json="--json" in arguments)
    except (InterruptedByOperatorError, KeyboardInterrupt):
        stderr().print("[bold red]error[/]: interrupted")
    except BrokenPipeError:
        _discard_output()  # the reader of a pipe has gone: nobody is left to tell
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ExitCode.DONE)
    except Exception as mistake:  # noqa: BLE001 - an operator is told what to do, whatever it is
        told = DdtreectlError(f"ddtreectl failed: {mistake!r}", hint=MISTAKE)
        told.__cause__ = mistake
        return _failed(told, as_json="--json" in arguments)
    return int(ExitCode.FAILED)


def _failed(failure: DdtreectlError, *, as_json: bool) -> int:
    """Tell the operator, who wants to know what to do and no traceback, unless it is asked for."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(failure)
    error(failure, as_json=as_json)
    return int(failure.exit_code)


def _only_text(arguments: list[str]) -> None:
    """Refuse words that are no text: neither a unit nor a record could hold them."""
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the argument {word!r} is not UTF-8 text") from None


def _discard_output() -> None:
    """Let the interpreter flush what is left into nothing, so that it does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
