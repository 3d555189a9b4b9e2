"""One operator at work on one slot of one host."""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddtreectl.apply.interrupts import Interrupts
from ddtreectl.apply.kept_moves import Seen
from ddtreectl.apply.operator import Operator, now
from ddtreectl.apply.report import Report
from ddtreectl.errors import DdtreectlError, StepError, UnreachableError
from ddtreectl.facts import host as host_facts
from ddtreectl.facts import probe
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.host import HostFacts, Scope
from ddtreectl.facts.http import Answer, Request, base_url, call, parse
from ddtreectl.facts.moves import Move
from ddtreectl.facts.output import Output
from ddtreectl.hosts.protocol import Host, check
from ddtreectl.inventory.layout import Layout, slot_units
from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.service import BUNDLED
from ddtreectl.units.supervisor import Replacement, Supervisor, Systemd

if TYPE_CHECKING:
    from ddtreectl.apply.router import Router

ASK_AGAIN = 3
SERVICES = ("systemd", "units", "unit_files", "ports", "processes", "records", "answers")
"""The sections that say what serves."""

GONE = "it boots, or its network is gone; it is looked at again when it answers"


@dataclass
class Session:
    """Everything that the steps share.

    Attributes:
        host: the machine.
        entry: its place in the inventory.
        operator: who works.
        report: tells the operator.
        interrupts: Ctrl-C.
        keys: the file on the host with the API keys of a slot's service, by slot.
        cordons: those that the operator keeps for the host, because it could not be reached.
        router: the router of the fleet, where there is one.
        moves: likewise, of services that have left it and may still serve there.
        seen: told what serves on the host, whenever that is known for certain.
        fenced: told of each of `moves` that has been fenced.
    """

    host: Host
    entry: HostEntry
    operator: Operator
    report: Report
    interrupts: Interrupts
    keys: Mapping[str, str] = field(default_factory=dict)
    cordons: tuple[Cordon, ...] = ()
    router: "Router | None" = None
    moves: tuple[Move, ...] = ()
    seen: Callable[[Seen], None] | None = None
    fenced: Callable[[Move], None] | None = None
    _systemd: bool | None = None

    @property
    def layout(self) -> Layout:
        """Where things lie on the host."""
        return Layout.of(self.entry)

    @property
    def python(self) -> str:
        """The interpreter of the host that ddtreectl uses and makes environments from."""
        return self.entry.interpreter

    @property
    def replacement(self) -> Replacement | None:
        """What runs units where no systemd does; only a local host has it."""
        if self.entry.connection != "local":
            return None
        root = self.layout.unit_dir.removesuffix("/etc/systemd/system")
        return Replacement(sys.executable, "" if root == self.layout.unit_dir else root)

    @property
    def supervisor(self) -> Supervisor:
        """The service manager of the host."""
        if self._systemd is None:
            self.gather(only=("systemd",))
        if not self._systemd and (replacement := self.replacement):
            return replacement
        return Systemd()

    def scope(self, folders: Iterable[str] = (), key_files: Iterable[str] = ()) -> Scope:
        """What the probe asks about."""
        slots = self.entry.slots
        units = [u for s in slots for u in slot_units(s)]
        return Scope(
            layout=self.layout,
            slots=tuple(slots),
            services=tuple(base_url(slot.address, slot.port) for slot in slots.values()),
            folders=tuple(folder for folder in folders if folder != BUNDLED),
            python=self.python,
            show_systemd=Systemd.SHOW,
            show_otherwise=self.replacement.show(units) if self.replacement else None,
            keys={
                base_url(slots[name].address, slots[name].port): path
                for name, path in self.keys.items()
            },
            key_files=tuple(key_files),
            cordons=self.cordons,
            moves=self.moves,
        )

    def gather(
        self,
        folders: Iterable[str] = (),
        only: Iterable[str] | None = None,
        key_files: Iterable[str] = (),
    ) -> HostFacts:
        """Probe the host; `only` names the sections that are needed.

        Raises:
            UnreachableError: it does not answer.
        """
        scope = self.scope(folders, key_files)
        sections = host_facts.sections(scope)
        if only is not None:
            sections = {name: sections[name] for name in only}
        deadline = probe.deadline(sections)
        result = self.host.run(probe.argv(sections, self.python), deadline=deadline)
        outputs = probe.parse(result.stdout)
        if not outputs:  # no interpreter: a shell can tell some of it
            result = self.host.run(["sh", "-s"], stdin=probe.script(sections), deadline=deadline)
            outputs = probe.parse(result.stdout)
        if not outputs:
            raise UnreachableError(
                f"`{self.host.name}` does not answer the probe", cause=result.said[-1000:]
            )
        facts = host_facts.parse(outputs, scope, sections)
        if "systemd" in sections:
            self._systemd = facts.systemd
        return facts

    def watch(self, only: Sequence[str], pause: float) -> Iterator[HostFacts]:
        """Probe the host again and again, by one command that goes on until it is closed.

        Raises:
            UnreachableError: it does not answer, or no longer.
            StepError: the host cannot run the probe.
        """
        every = host_facts.sections(self.scope())
        sections = {name: every[name] for name in only}
        said: list[str] = []
        told = False
        try:
            for line in self.host.stream(probe.argv(sections, self.python, pause)):
                said.append(line)
                if line == "\n" and (outputs := probe.parse("".join(said))):
                    said.clear()
                    told = True
                    yield host_facts.parse(outputs, self.scope(), sections)  # cordons may change
        except UnreachableError as error:
            raise UnreachableError(error.message, cause=error.cause, hint=GONE) from error
        if told:  # whatever has ended the probe did not begin with it
            raise UnreachableError(
                f"`{self.host.name}` has ended the look at it", cause="".join(said[-5:]), hint=GONE
            )
        raise StepError(
            f"`{self.host.name}` cannot be looked at",
            cause="".join(said[-5:]),
            hint=f"does `{self.python}` run on the host?",
        )

    def look(self) -> HostFacts:
        """Units, ports and processes alone: what changes while a service starts or stops."""
        return self.certain("units", "ports", "processes")

    def slots(self) -> HostFacts:
        """What serves in the slots, and what is recorded of them."""
        return self.certain(*SERVICES)

    def certain(
        self, *sections: str, needed: Collection[str] | None = None, times: int = ASK_AGAIN
    ) -> HostFacts:
        """The facts of `sections` without a gap: what is not known must not be acted on.

        Args:
            sections: what is asked for.
            needed: those of them that must not be missing; all of them if left out.
            times: how often it is asked at the most.

        Raises:
            StepError: the host does not tell.
        """
        asked = 0
        while True:
            facts, asked = self.gather(only=sections), asked + 1
            late = self.late(facts, sections if needed is None else needed, asked)
            if late is None:
                return facts
            if asked >= times:
                raise late

    def late(self, facts: HostFacts, needed: Collection[str], times: int = 1) -> StepError | None:
        """What to say of facts that lack some of the `needed` sections; None where they do not.

        A service of which nothing was told in time is not one that has failed.
        """
        missing = [name for name in facts.missing if name in needed]
        if not missing:
            return None
        every = host_facts.sections(self.scope())
        limits = ", ".join(f"{name} within {every[name].deadline:g} s" for name in missing)
        asked = f"asked {times} times" if times > 1 else "asked once"
        return StepError(
            f"`{self.host.name}` does not say in time what is to be known of it",
            cause=f"{asked}, it did not tell: {limits}",
            hint="is it overloaded, or its temporary folder full? `uptime` and `df /tmp` there say "
            "it; then try again",
        )

    def ask(self, requests: list[Request], deadline: float) -> list[Answer]:
        """Make HTTP requests on the host; the answers come in the order of the requests."""
        result = self.host.run(call(requests).argv(self.python), deadline=deadline)
        answers = parse(Output(result.returncode, result.stdout, result.stderr))
        nothing = result.stderr.strip().rpartition("\n")[2] or "no answer"
        silent = [Answer(r.url, None, error=nothing) for r in requests[len(answers) :]]
        return [*answers, *silent]

    def remember(self, seen: Seen) -> None:
        """Have the operator's machine remember what serves; that it cannot is said, no more."""
        try:
            if self.seen and seen:
                self.seen(seen)
        except DdtreectlError as error:
            self.report.say(f"  ! {error.message} {error.cause}".rstrip())

    def audit(self, event: str, **fields: object) -> None:
        """Append a line to the host's audit log; one that cannot be written is said, no more."""
        entry = {"at": now(), "operator": str(self.operator), "event": event, **fields}
        line = json.dumps(entry, sort_keys=True)
        # The line stands in the command: of an input, a connection that is cut may leave a half.
        append = 'mkdir -p -- "$1" && printf "%s\\n" "$3" >>"$2"'
        words = ["sh", "-c", append, "ddtreectl-audit", self.layout.root, self.layout.audit, line]
        try:
            written = self.host.run(words, deadline=30.0)
            check(written, f"the audit log {self.layout.audit} cannot be written")
        except DdtreectlError as error:
            self.report.say(f"  ! {error.message} {error.cause}".rstrip())
