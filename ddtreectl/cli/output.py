"""Prints: results to stdout, everything else to stderr."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ddtreectl.cli.terminal import SafeConsole, json_text, printable
from ddtreectl.errors import DdtreectlError
from ddtreectl.plan.step import Plan

if TYPE_CHECKING:
    from ddtreectl.cli.progress_bar import ProgressBar


def stdout() -> Console:
    """The console of results."""
    return _console(to_stderr=False)


def stderr() -> Console:
    """The console of progress and errors."""
    return _console(to_stderr=True)


def _console(*, to_stderr: bool) -> Console:
    """A console that wraps words at the width of a terminal, and nowhere in a file or pipe."""
    console = SafeConsole(stderr=to_stderr, highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


def plain(text: str) -> None:
    """Print a line of text as it is, but for what a terminal would obey."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def progress(line: str, host: str = "") -> None:
    """Print a line of progress, of one of several hosts where one is named."""
    styles = {"✓": "green", "✗": "red", "!": "yellow", "…": "dim"}
    style = styles.get(line.strip()[:1], "")
    where = f"[bold]{escape(f'[{host}]')}[/]" if host else ""
    stderr().print(where + (f"[{style}]{escape(line)}[/]" if style else escape(line)))


def progress_bar() -> "ProgressBar | None":
    """A bar for transfers; None where nobody would see it move."""
    console = stderr()
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    from ddtreectl.cli.progress_bar import ProgressBar

    return ProgressBar(console)


def document(content: Mapping[str, object]) -> None:
    """Print the result of a command as JSON."""
    sys.stdout.write(json_text(json.dumps(content, indent=2, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def line(content: Mapping[str, object]) -> None:
    """Print one of several results as JSON, in a line of its own."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def error(failure: DdtreectlError, *, as_json: bool, host: str = "") -> None:
    """Print a failure: `error:`, its cause, what was seen, and `hint:`."""
    console = stderr()
    where = f"[bold]{escape(f'[{host}]')}[/] " if host else ""
    console.print(f"{where}[bold red]error[/]: {escape(failure.message)}")
    if failure.cause:
        console.print(escape(indented("cause: " + failure.cause)))
    if failure.evidence:
        console.print(escape(indented("\n".join(["evidence:", *failure.evidence]))))
    if failure.hint:
        console.print(f"[bold cyan]hint[/]: {escape(failure.hint)}")
    if as_json:
        document(
            {
                "error": {
                    "message": failure.message,
                    "cause": failure.cause,
                    "hint": failure.hint,
                    "evidence": list(failure.evidence),
                    "exit_code": int(failure.exit_code),
                }
            }
        )


def indented(text: str) -> str:
    """The lines of `text`, as what belongs to the line above."""
    return "\n".join(f"  {line}" for line in text.splitlines())


def plan(shown: Plan) -> None:
    """Print a plan: its steps with their reasons, how the unit changes, and notes."""
    console = stdout()
    where = f"`{shown.slot}` of `{shown.host}`"
    if shown.refusals:
        console.print(f"[bold red]refused[/]: {escape(where)} cannot take this now")
        for reason in shown.refusals:
            console.print(f"  • {escape(reason)}")
    if shown.empty:
        console.print(f"nothing to do for {escape(where)}")
    for number, step in enumerate(shown.steps, 1):
        console.print(f"{number:3}. {escape(step.title)}  [dim]{escape(step.reason)}[/]")
    if shown.unit_diff:
        console.print()
        for line in shown.unit_diff.splitlines():
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
            console.print(f"[{style}]{escape(line)}[/]")
        console.print()
    for text in shown.notes:
        note(text)


def note(text: str) -> None:
    """Print what a reader of a plan should know."""
    stdout().print(f"[dim]note:[/] {escape(text)}")


def plan_document(shown: Plan) -> dict[str, object]:
    """A plan as JSON."""
    candidate = shown.candidate
    return {
        "host": shown.host,
        "slot": shown.slot,
        "steps": [
            {"action": s.action, "title": s.title, "reason": s.reason, "phase": s.phase}
            for s in shown.steps
        ],
        "generation": candidate.number if candidate else None,
        "service": candidate.service.model_dump(mode="json") if candidate else None,
        "environment": candidate.environment if candidate else None,
        "unit": candidate.unit if candidate else None,
        "back": shown.back,
        "refusals": list(shown.refusals),
        "notes": list(shown.notes),
        "unit_diff": shown.unit_diff,
    }
