"""`ddtreectl watch`."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from ddtreectl.apply import cordons
from ddtreectl.apply.kept_cordons import KeptCordons
from ddtreectl.apply.operator import now
from ddtreectl.apply.session import Session
from ddtreectl.apply.watch import Watch
from ddtreectl.apply.webhook import Webhook
from ddtreectl.cli import output
from ddtreectl.cli.context import Json, context
from ddtreectl.cli.status import PATIENCE, state_of
from ddtreectl.errors import DdtreectlError, ExitCode
from ddtreectl.facts.host import STATUS
from ddtreectl.inventory.select import find_host
from ddtreectl.plan.changes import Change, Snapshot, changes, snapshot
from ddtreectl.plan.status import HostStatus

WEBHOOK = "DDTREECTL_WEBHOOK"


def watch(
    ctx: typer.Context,
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST]...", help="All hosts if left out.")
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0, max=3600, help="Seconds between two looks.")
    ] = 5.0,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook",
            metavar="URL",
            envvar=WEBHOOK,
            help="Post each change there as JSON. In the variable it is seen by nobody else.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Follow hosts, and print each change once, until Ctrl-C.

    Changes of hosts, drivers, GPUs, services and cordons. The first look prints what somebody has
    to do something about. Cordons that were kept for a host are brought to it when it answers.
    With --json each change is a document in a line, as it is posted to the webhook.
    """
    opened = context(ctx)
    inventory = opened.inventory()
    for name in hosts or ():
        find_host(inventory, name)
    names = list(dict.fromkeys(hosts or inventory.hosts))
    sessions = {name: opened.session(inventory, name) for name in names}
    kept = KeptCordons(opened.path())
    post = Webhook(webhook, output.progress) if webhook else None

    def look(name: str) -> Iterator[HostStatus]:
        for facts in sessions[name].watch(STATUS, interval):
            _deliver(sessions[name], kept)
            yield state_of(sessions[name], facts)

    rounds = Watch(names, look, interval + PATIENCE).rounds()
    before: Snapshot = {}
    try:
        for number, seen in enumerate(rounds):
            found = snapshot(seen, before, {name: kept.of(name) for name in names})
            for change in changes(before, found):
                _tell(change, post, as_json=as_json)
            if not number and not as_json:
                output.progress(f"watching {len(names)} hosts; Ctrl-C ends it")
            before = found
    except KeyboardInterrupt:
        pass  # the usual end of a watch
    finally:
        if post:
            post.close()
    return int(ExitCode.DONE)


def _deliver(session: Session, kept: KeptCordons) -> None:
    """Bring cordons to a host that could not be reached when they were made."""
    if not session.cordons:
        return
    try:
        cordons.deliver(session, kept)
    except DdtreectlError as error:
        output.progress(f"! {error.message}")
        return
    session.cordons = ()


def _tell(change: Change, post: Webhook | None, *, as_json: bool) -> None:
    document: Mapping[str, object] = {"at": now(), **asdict(change), "text": str(change)}
    if post:
        post.post(document)
    if as_json:
        output.line(document)
        return
    style = "green" if change.fine else "bold red"
    console = output.stdout()
    console.print(f"{time.strftime('%H:%M:%S')} [{style}]{escape(str(change))}[/]")
    if change.hint:
        console.print(f"         [cyan]hint[/]: {escape(change.hint)}")
