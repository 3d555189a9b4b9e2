"""The router at work: takes workers out, sees them idle, puts them in.

Nothing here fails because of the router: a service must not stay down because what stands in front
of it does. What could not be done is told, and `ddtreectl router sync` does it later.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ddtreectl.apply import router_list
from ddtreectl.apply.exchange import pauses
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError, UnreachableError
from ddtreectl.facts import metrics
from ddtreectl.facts.http import Request, base_url
from ddtreectl.facts.router import RouterFacts, WorkerList, parse_workers
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.workers import Worker, slot_id
from ddtreectl.plan.routed import SYNC

UNIT = "ddtree-router.service"

ASK_SECONDS = 5.0
TAKEN_OUT_WITHIN = 15.0
"""A list that has changed is read at once; this allows for a router that has much to do."""

READY_WITHIN = 40.0
"""smg removes a worker 5 s after it was taken out, and takes one in again only after that."""


@dataclass
class Router:
    """The router of a fleet, for whoever works on one of its workers.

    Attributes:
        settings: its section of the inventory.
        workers: all workers, by name.
        urls: where each host reaches it.
        open: a session with its host.
    """

    settings: RouterSettings
    workers: Mapping[str, Worker]
    urls: Mapping[str, str]
    open: Callable[[], Session]
    _session: Session | None = field(default=None, init=False)

    @property
    def session(self) -> Session:
        """The session with its host, made at first use."""
        if self._session is None:
            self._session = self.open()
        return self._session

    @property
    def url(self) -> str:
        """Where it is asked from its own host."""
        return base_url(self.settings.address, self.settings.port)

    def worker(self, place: Place) -> Worker | None:
        """The worker that a slot is, or None for one that is not behind the router."""
        return self.workers.get(slot_id(place.host_name, place.slot_name))

    def facts(self) -> RouterFacts:
        """What it has and what it is told to have; a host that does not answer is an answer."""
        try:
            unit = self.session.host.read(self.session.layout.unit(UNIT))
            kept = router_list.change(self.session, "show")
        except DdtreectlError as error:
            return unreachable(error)
        if unit is None:
            return RouterFacts("absent", "it was never deployed", kept.listed, kept.moved)
        return self.beside(kept)

    def beside(self, kept: WorkerList) -> RouterFacts:
        """What it has, beside a list that has just been read."""
        return replace(self.look(), listed=kept.listed, moved=kept.moved, out=kept.out)

    def look(self) -> RouterFacts:
        """What it has, and nothing of its list: for a look that is taken again and again."""
        try:
            answer = self.session.ask([Request(f"{self.url}/workers", ASK_SECONDS)], 15.0)[0]
        except DdtreectlError as error:
            return unreachable(error)
        workers = parse_workers(answer)
        if workers is None:
            return RouterFacts("down", str(answer)[:300])
        return RouterFacts("up", workers=workers)

    def take_out(self, session: Session, worker: Worker) -> None:
        """Have no new request sent to `worker`, which does not come back by itself.

        Args:
            session: with the worker's host; it is told there.
            worker: the worker.
        """
        if self._change(session, "remove", worker.name):
            self.await_out(session, worker)

    def give_up(self, session: Session, worker: Worker) -> None:
        """Have nobody wait for a worker that was taken out for a swap and does not serve."""
        self._change(session, "remove", worker.name)

    def await_out(self, session: Session, worker: Worker) -> None:
        """Wait until the router has read that `worker` is out."""
        end = time.monotonic() + TAKEN_OUT_WITHIN
        for _ in pauses(session.interrupts):
            found = self.look()
            if found.state != "up":
                session.report.say(f"  ! the router is {found.state}: {found.problem}")
                return
            entry = found.worker(worker.name)
            if entry is None or entry.status == "draining":
                return
            if time.monotonic() > end:
                session.report.say(f"  ! the router still sends requests to {worker.name}")
                return

    def await_idle(self, session: Session, place: Place, worker: Worker) -> None:
        """Wait until `worker` has no running request; after the drain timeout, no longer.

        The router counts its own requests for as long as it drains a worker; afterwards, and of
        requests that did not come through the router, the service's own metrics tell. Where it
        has none, requests that outlast the draining get all of the time.
        """
        load: int | None = 0
        end = time.monotonic() + self.settings.drain_timeout
        for _ in pauses(session.interrupts):
            entry = self.look().worker(worker.name)
            running = self._running(session, place)
            if entry is not None:
                load = entry.load
            elif running is not None:
                load = 0
            if not load and not running:
                return
            session.report.detail(f"{max(load or 0, running or 0)} requests are running")
            if time.monotonic() > end:
                session.report.say(
                    f"  ! {max(load or 0, running or 0)} requests still run after "
                    f"{self.settings.drain_timeout} s (`drain_timeout`)"
                )
                return

    def put_in(self, session: Session, worker: Worker) -> bool:
        """Have requests sent to `worker` from now on. Returns whether it gets them."""
        if not self._change(session, "add", worker.name, worker.url):
            return False
        end = time.monotonic() + READY_WITHIN
        for _ in pauses(session.interrupts):
            found = self.look()
            if found.state != "up":
                session.report.say(
                    f"  ! the router is {found.state} ({found.problem}): {worker.name} is on its "
                    "list and gets requests when it is up again"
                )
                return False
            entry = found.worker(worker.name)
            if entry is not None and (entry.url, entry.status) == (worker.url, "ready"):
                return True
            session.report.detail(f"the router has it as {entry.status if entry else 'unknown'}")
            if time.monotonic() > end:
                status = f"as `{entry.status}`" if entry else "not"
                session.report.say(f"  ! after {READY_WITHIN:.0f} s the router has it {status}")
                return False
        return False

    def expect(self, name: str, to: str) -> None:
        """Have worker `to` put in as the one that will stand for slot `name`, which serves on.

        Raises:
            DdtreectlError: the list cannot be changed.
        """
        router_list.change(self.session, "expect", name, to)

    def unexpect(self, name: str, to: str) -> None:
        """Take that back.

        Raises:
            DdtreectlError: the list cannot be changed.
        """
        router_list.change(self.session, "unexpect", name, to)

    def move(self, name: str, to: str) -> None:
        """Have worker `to` stand for slot `name`, whose own service must not serve any more.

        Raises:
            DdtreectlError: the list cannot be changed.
        """
        router_list.change(self.session, "move", name, to)

    def give_back(self, name: str, to: str) -> None:
        """Have slot `name` serve again, beside worker `to`, which stands for it until then.

        Raises:
            DdtreectlError: the list cannot be changed.
        """
        router_list.change(self.session, "return", name, to)

    def await_forgotten(self, session: Session, name: str) -> None:
        """Wait until no worker stands for slot `name`; one that was taken out does so for 5 s."""
        end = time.monotonic() + TAKEN_OUT_WITHIN
        for _ in pauses(session.interrupts):
            found = self.look()
            if not any(name in entry.moved for entry in found.workers) or time.monotonic() > end:
                return

    def forget(self, name: str) -> None:
        """Have nobody stand for slot `name` any more: its own service may serve again.

        Raises:
            DdtreectlError: the list cannot be changed.
        """
        router_list.change(self.session, "unmove", name)

    def _change(self, session: Session, what: Literal["add", "remove"], *words: str) -> bool:
        try:
            kept = router_list.change(self.session, what, *words)
        except DdtreectlError as error:
            say_not_told(session, error)
            return False
        if what == "add" and words[0] not in kept.listed:
            by = kept.moved.get(words[0])
            session.report.say(f"  ! {by} stands for {words[0]} at the router")
            return False
        return True

    def _running(self, session: Session, place: Place) -> int | None:
        """Requests that the service of a slot decodes or queues; None where it does not tell."""
        url = f"{base_url(place.slot.address, place.slot.port)}/metrics"
        key = session.keys.get(place.slot_name)
        asked = [Request(url, ASK_SECONDS, lines=metrics.NAMES, key_file=key)]
        answer = session.ask(asked, 15.0)[0]
        if not answer.ok:
            return None
        told = metrics.parse(answer.body, None)
        return (told.running or 0) + (told.queued or 0)


def say_not_told(session: Session, error: DdtreectlError) -> None:
    """Tell that the list could not be changed, and what does it later."""
    session.report.say(f"  ! {error.message} {error.cause}".rstrip())
    session.report.say(f"  ! later, {SYNC}")


def unreachable(error: DdtreectlError) -> RouterFacts:
    """A router of which nothing is known."""
    if isinstance(error, UnreachableError):
        return RouterFacts("unreachable", error.message)
    return RouterFacts("unreachable", f"{error.message} {error.cause}".strip()[:300])
