"""The `ddtree-engine` command.

Exit codes: 0 done, 1 failed (one message on stderr), 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ddtree_engine import __version__
from ddtree_engine.errors import EngineError
from ddtree_engine.readable import permission_hint

COMMANDS = ("serve", "generate", "check", "bench", "inspect", "train")


def _command(name: str) -> ModuleType:
    """The module of a command; it leaves PyTorch, which takes seconds, to its `run`."""
    return import_module(f"ddtree_engine.cli.{name}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="ddtree-engine",
        description="Exact draft-tree speculative decoding for hybrid language models.",
    )
    parser.add_argument("--version", action="version", version=f"ddtree-engine {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = _command(name)
        summary = module.SUMMARY
        sub = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(sub)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode gets escapes and no traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments = build_parser().parse_args(argv)
        code: int = _command(arguments.command).run(arguments)
        sys.stdout.flush()
        return code
    except EngineError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        # A path too long, a folder that is not ours to look into, a full disk: wherever it shows.
        denied = isinstance(error, PermissionError) and error.filename is not None
        hint = permission_hint(error.filename) if denied else None
        print(EngineError(str(error), hint=hint).render(), file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return 1


def _open_standard_streams() -> None:
    """Whoever started this may have closed some: a socket must not get the number of stderr."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the very end
            setattr(sys, name, nowhere)


def _drop_output() -> None:
    """Nobody takes our output: leave nothing for the interpreter to flush into it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
