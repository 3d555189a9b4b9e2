"""Writes docs/reference: the commands from the parsers, and the verdicts on GPUs from their table.

python -m tools.cli_reference          # `make docs`: write all
python -m tools.cli_reference --check  # exit 1, and say which, if one is out of date
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ddtree_engine.cli.main import COMMANDS as ENGINE_COMMANDS
from ddtree_engine.cli.main import build_parser
from ddtreectl.cli.commands import COMMANDS, load
from ddtreectl.cli.main import app
from tools import gpu_verdicts

if TYPE_CHECKING:
    from typer._click import Command

FOLDER = Path(__file__).parents[1] / "docs/reference"
NOTE = "Generated from the code by `make docs`."


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare them. Returns the exit code."""
    pages = {
        "ddtreectl.md": ddtreectl_page(),
        "ddtree-engine.md": engine_page(),
        "gpu-verdicts.md": _page(gpu_verdicts.page(NOTE)),
    }
    if arguments == ["--check"]:
        stale = [name for name, page in pages.items() if _read(FOLDER / name) != page]
        for name in stale:
            print(f"docs/reference/{name} is out of date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in pages.items():
        (FOLDER / name).write_text(page, encoding="utf-8")
    return 0


def ddtreectl_page() -> str:
    """Every command of ddtreectl with its arguments and options."""
    group = typer.main.get_command(app)
    parts = ["# ddtreectl", NOTE, _help(group), "Options of all commands:", _params(group)]
    for name in COMMANDS:
        parts += _command(f"ddtreectl {name}", load(name))
    return _page(parts)


def _command(name: str, command: Command) -> Iterator[str]:
    commands: dict[str, Command] = getattr(command, "commands", {})
    if commands:
        for inner, one in commands.items():
            yield from _command(f"{name} {inner}", one)
        return
    context = command.make_context(command.name, [], resilient_parsing=True)
    yield f"## {name}"
    yield f"`{' '.join([name, *command.collect_usage_pieces(context)])}`"
    yield _help(command)
    if table := _params(command):
        yield table


def _help(command: Command) -> str:
    # A line break inside a paragraph means nothing, and nor does what follows a form feed.
    return inspect.cleandoc(command.help or "").split("\f")[0].strip()


def _params(command: Command) -> str:
    context = command.make_context(command.name, [], resilient_parsing=True)
    records = [parameter.get_help_record(context) for parameter in command.params]
    return _table(record for record in records if record is not None)


def engine_page() -> str:
    """Every command of ddtree-engine with its options."""
    parser = build_parser()
    parts = ["# ddtree-engine", NOTE, parser.description or ""]
    (commands,) = (
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for name in ENGINE_COMMANDS:
        sub = commands[name]
        parts += [f"## ddtree-engine {name}", f"`ddtree-engine {name} [OPTIONS]`"]
        parts.append(sub.description or "")
        parts.append(_table(_actions(sub)))
    return _page(parts)


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        written = ", ".join(action.option_strings) or str(action.metavar or action.dest.upper())
        if action.option_strings and action.nargs != 0:
            metavar = action.metavar or action.dest.upper()
            value = metavar if isinstance(metavar, str) else " ".join(metavar)
            written += f" {_choices(action.choices) if action.choices else value}"
        yield written, action.help or ""


def _choices(choices: Iterable[Any]) -> str:
    return "|".join(str(getattr(one, "value", one)) for one in choices)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| `{_cell(written)}` | {_cell(text)} |" for written, text in rows]
    return "\n".join(["| | |", "|---|---|", *lines]) if lines else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
