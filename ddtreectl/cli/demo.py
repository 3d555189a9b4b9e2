"""`ddtreectl demo`."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ddtreectl.apply import showcase
from ddtreectl.apply.deploy import Deployment
from ddtreectl.apply.lock import holder
from ddtreectl.apply.showcase import Comparison, Completion
from ddtreectl.cli import output, status_table
from ddtreectl.cli.context import Json, context
from ddtreectl.cli.terminal import printable
from ddtreectl.errors import ExitCode, StepError
from ddtreectl.facts.http import base_url
from ddtreectl.inventory.select import find_place, service_for
from ddtreectl.inventory.service import Mode, ServiceSpec
from ddtreectl.plan.status import host_status

BUDGET = 16
TOKENS = 128
PROMPT_LINES = 8


def demo(
    ctx: typer.Context,
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host.")] = "local",
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, max=20, help="Held-out prompts to measure on.")
    ] = 4,
    runs: Annotated[
        int, typer.Option("--runs", min=1, max=50, help="Measured runs of each mode.")
    ] = 5,
    as_json: Json = False,
) -> int:
    """Deploy the bundled model in tree mode, let it complete a prompt, and compare its modes.

    The service is left running.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    name = opened.host_name(inventory, host)
    place = find_place(inventory, name)
    service = service_for(inventory, place, Mode.TREE, budget=BUDGET)
    session = opened.session(inventory, name)
    say = session.report.say
    with session.interrupts.watch():
        say(f"Deploying tree mode with budget {BUDGET} to `{name}`, port {service.port}")
        outcome = Deployment(session, place).deploy(service)
        if outcome.plan.candidate is None:
            raise StepError("the deploy names no generation")
        environment = outcome.plan.candidate.environment
        with session.report.step("complete a held-out prompt"):
            completion = showcase.complete(session, environment, service, max_tokens=TOKENS)
        title = f"measure ar, linear and tree on {prompts} held-out prompts, {runs} runs each"
        with session.report.step(title):
            comparison = showcase.compare(
                session, environment, service, prompts=prompts, max_tokens=TOKENS, runs=runs
            )
        facts = session.gather()
    locked = holder(facts.records, session.operator) is not None
    state = host_status(name, place.host, facts, now=time.time(), locked=locked)
    if as_json:
        document = status_table.document([state], {})
        document |= {"completion": asdict(completion), "comparison": asdict(comparison)}
        output.document(document)
        return int(ExitCode.DONE)
    console = output.stdout()
    console.print()
    console.print(status_table.table([state], {}))
    _completion(console, completion)
    _comparison(console, comparison)
    _farewell(console, name, service)
    return int(ExitCode.DONE)


def _completion(console: Console, shown: Completion) -> None:
    figures = [f"{shown.tokens} tokens"]
    if shown.acceptance_length is not None:
        figures.append(f"τ {shown.acceptance_length:.2f}")
    if shown.tokens_per_second is not None:
        figures.append(f"{shown.tokens_per_second:.0f} tok/s, one request")
    console.print(
        f"\n[bold]{escape(shown.name)}[/], held out from training, completed in mode tree "
        f"({', '.join(figures)}):\n"
    )
    tail = "".join(shown.prompt.splitlines(keepends=True)[-PROMPT_LINES:])
    text = Text.assemble((printable(tail), "dim"), (printable(shown.text.rstrip()), "green"))
    for line in text.split("\n"):
        console.print(Text("  │ ").append_text(line))


def _comparison(console: Console, shown: Comparison) -> None:
    console.print(
        f"\n[bold]ar, linear, tree[/]: {shown.prompts} held-out prompts x {shown.max_tokens} "
        f"tokens, greedy; tok/s is the median of {shown.runs} runs "
        f"after {shown.warm_ups} warm-up; {shown.divergences} texts differ from ar\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("MODE")
    for title in ("τ", "TOK/S", "x AR"):
        table.add_column(title, justify="right")
    for row in shown.modes:
        table.add_row(
            row.mode.replace(":", " "),
            f"{row.acceptance_length:.2f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.speedup:.2f}",
        )
    console.print(table)


def _farewell(console: Console, host: str, service: ServiceSpec) -> None:
    url = f"{base_url(service.address, service.port)}/v1/completions"
    body = '{"prompt": "def fibonacci(n):\\n", "max_tokens": 64, "temperature": 0}'
    console.print("\nThe service goes on running. Talk to it, look at it, swap it, stop it:\n")
    console.print(f"  curl {url} -H 'Content-Type: application/json' \\")
    console.print(f"    -d '{escape(body)}'")
    program = _program()
    for command in ("status {}", "deploy {} --mode linear", "rollback {}", "stop {}"):
        console.print(f"  {program} {command.format(host)}")


def _program() -> str:
    """How to call ddtreectl from here: by its path in an environment below this folder."""
    beside = Path(sys.executable).with_name("ddtreectl")
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else "ddtreectl"
