"""The entry point: builds the application, runs it, turns failures into exit codes."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from ddtreectl import __version__
from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.cli.commands import Commands
from ddtreectl.cli.context import Context
from ddtreectl.errors import MISTAKE, TRACEBACK, DdtreectlError, ExitCode, UsageError

app = typer.Typer(
    name="ddtreectl",
    cls=Commands,
    help="Deploy, swap, watch and roll back speculative-decoding LLM services.",
    rich_markup_mode=None,
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
        from ddtreectl.cli.output import stderr

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
    from ddtreectl.cli.output import error

    if os.environ.get(TRACEBACK):
        import traceback

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
