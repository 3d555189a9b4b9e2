"""Takes the environment of one host over to another, file by file."""

import re
from dataclasses import dataclass, replace
from shlex import quote

from ddtreectl.apply.claims import claim
from ddtreectl.apply.environments import (
    COMMAND_DEADLINE,
    MIB,
    ingredients,
    write_record,
)
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.provision import unit_of
from ddtreectl.apply.session import Session
from ddtreectl.apply.verification import inspect, raise_first
from ddtreectl.env import build
from ddtreectl.env.backends import BACKENDS, Backend, BackendName
from ddtreectl.env.cuda import CPU
from ddtreectl.env.inspection import Inspection
from ddtreectl.env.lock import build_in
from ddtreectl.env.request import accelerators
from ddtreectl.env.takeover import Destination, Origin, mismatches
from ddtreectl.env.verify import Expected
from ddtreectl.errors import RefusedError, UsageError
from ddtreectl.facts import python as python_fact
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.output import Output, json_object
from ddtreectl.facts.python import Python
from ddtreectl.facts.records import Provisioned
from ddtreectl.hosts.copy import Copy
from ddtreectl.hosts.tree import listing
from ddtreectl.inventory.environment import EnvironmentSettings
from ddtreectl.inventory.model import Inventory

_INTERPRETER = re.compile(r"/[^\0\n]*/python3?(\.\d+)?")
"""What the link of an environment to its interpreter may name: it is run on the other host."""

SECTIONS = ("systemd", "python", "disk", "driver", "gpus", "units", "unit_files", "records")


@dataclass(frozen=True)
class TakeoverPlan:
    """What a takeover does.

    Attributes:
        host: the host that gets the environment.
        taken_from: the host that has it.
        backend: what it serves.
        environment: its name.
        torch: the version of torch in it.
        build: its CUDA build, or `cpu`.
        refusals: every mismatch, by name.
        done: whether the host has it and deploys go by it already.
    """

    host: str
    taken_from: str
    backend: str
    environment: str
    torch: str
    build: str
    refusals: tuple[str, ...] = ()
    done: bool = False


class Takeover:
    """One takeover.

    Args:
        session: the operator at work on the host that gets the environment.
        source: the same on the host that has it.
        backend: what it serves.
        settings: what the inventory and the operator want of it.
        inventory: the inventory that both are in.
    """

    def __init__(
        self,
        session: Session,
        source: Session,
        backend: BackendName,
        settings: EnvironmentSettings,
        inventory: Inventory,
    ) -> None:
        self._session = session
        self._source = source
        self._backend: Backend = BACKENDS[backend]
        self._settings = settings
        self._inventory = inventory
        self._found = Inspection()
        self._marker: dict[str, object] = {}

    def plan(self) -> TakeoverPlan:
        """What would be done now. Changes nothing.

        Raises:
            UsageError: the other host has no environment for the backend.
        """
        return self._plan(self._look(self._session))

    def take(self, *, lock_wait: float = 0.0) -> TakeoverPlan:
        """Copy, verify and record the environment.

        Raises:
            RefusedError: it does not fit; every mismatch is named.
            StepError: a step failed; nothing that looks finished is left.
        """
        session = self._session
        lock = HostLock(session.host, session.layout, session.operator, wait=lock_wait)
        with locked(session, lock):
            with session.report.step(f"look at {self._source.host.name} and {session.host.name}"):
                facts = self._look(session)
                plan = self._plan(facts)
            if plan.refusals:
                raise RefusedError(
                    f"the environment of `{plan.taken_from}` does not fit `{plan.host}`: "
                    f"{plan.refusals[0]}",
                    cause="\n".join(plan.refusals[1:]),
                    hint="provision from a wheelhouse instead; nothing was changed",
                )
            if plan.done:
                return plan
            session.audit(
                "provision", command=session.operator.command, environment=plan.environment
            )
            if plan.environment not in facts.records.environments:
                self._bring(plan.environment, facts, plan.build)
            with session.report.step("note it on the host"):
                write_record(session, self._record(plan))
            session.audit("provision-done", environment=plan.environment)
        return plan

    def _look(self, session: Session) -> HostFacts:
        return session.certain(*SECTIONS)

    def _plan(self, facts: HostFacts) -> TakeoverPlan:
        source, backend = self._source, self._backend
        theirs = self._look(source)
        name = current(theirs, backend)
        if name is None:
            raise UsageError(
                f"`{source.host.name}` has no finished environment for backend `{backend.name}`",
                hint="it takes one that was provisioned or deployed there",
            )
        self._marker = json_object(
            (source.host.read(f"{source.layout.environment(name)}/{build.MARKER}") or b"").decode(
                errors="replace"
            )
        )
        folder = source.layout.environment(name)
        unit = unit_of(source, self._inventory, name, theirs)
        self._found, _ = inspect(source, theirs, folder, unit, Expected(backend))
        origin = Origin(
            name=source.host.name,
            found=self._found,
            backend=backend,
            build=str(self._marker.get("build") or build_in(name)),
            environments=source.layout.environments,
            engine=str(self._marker.get("engine") or ""),
        )
        told = mismatches(origin, self._destination(facts, folder))
        torch = self._found.torch
        plan = TakeoverPlan(
            host=self._session.host.name,
            taken_from=source.host.name,
            backend=backend.name,
            environment=name,
            torch=torch.version.partition("+")[0] if torch else "",
            build=origin.build,
            refusals=tuple(told),
        )
        finished = name in facts.records.environments
        done = finished and facts.records.provisioned.get(backend.name) == self._record(plan)
        return replace(plan, done=done)

    def _destination(self, facts: HostFacts, folder: str) -> Destination:
        session, settings = self._session, self._settings
        link = f"readlink {quote(folder)}/bin/python"
        said = self._source.host.run(["sh", "-c", link], deadline=COMMAND_DEADLINE).stdout.strip()
        interpreter = said if _INTERPRETER.fullmatch(said) else session.python
        return Destination(
            name=session.host.name,
            python=_interpreter(session, interpreter),
            interpreter=interpreter,
            host=accelerators(session.entry, facts),
            environments=session.layout.environments,
            torch=settings.torch or self._backend.torch,
            cuda=settings.cuda,
            engine=ingredients().engine.sha256 if self._backend.version is None else None,
        )

    def _bring(self, name: str, facts: HostFacts, built: str) -> None:
        session, source = self._session, self._source
        folder = session.layout.environment(name)
        claim(session, [name])
        with session.report.step("compare what both hosts have"):
            wanted = dict(listing(source.host, source.python, folder))
            wanted.pop(build.MARKER, None)
            there = listing(session.host, session.python, folder)
            copy = Copy(source.host, session.host, folder, wanted, there)
            self._room(copy, facts)
        title = f"copy {len(copy.missing)} of {len(wanted)} files, {copy.bytes / MIB:.0f} MiB"
        with session.report.step(title):
            copy.run(session.report.amount)
        with session.report.step("compare every hash"):
            again = Copy(
                source.host,
                session.host,
                folder,
                wanted,
                listing(session.host, session.python, folder),
            )
            if again.missing:
                raise RefusedError(
                    f"{len(again.missing)} files differ on `{session.host.name}` after the copy",
                    cause="\n".join(entry.path for entry in again.missing[:10]),
                    hint=f"does somebody change {folder} on `{source.host.name}`? Try again",
                )
        with session.report.step("verify it as the service will run it"):
            host = accelerators(session.entry, facts)
            expected = Expected(
                self._backend,
                build=None if built == CPU else built,
                capabilities=tuple(entry for entry in host.capabilities if entry is not None),
            )
            unit = unit_of(session, self._inventory, name, facts)
            found, told = inspect(session, facts, folder, unit, expected)
            raise_first(told, f"the packages of `{name}` do not fit `{session.host.name}`")
        with session.report.step("mark it finished"):
            python = facts.python
            content = build.marker(
                name,
                python.abi if python else "",
                found.fingerprint(),
                build=built,
                engine=self._marker.get("engine", ""),
                taken_from=source.host.name,
            )
            session.host.put(f"{folder}/{build.MARKER}", content)

    def _room(self, copy: Copy, facts: HostFacts) -> None:
        disk = facts.disk.get(self._session.layout.environments)
        if disk is None:
            return
        few = disk.free_inodes is not None and disk.free_inodes < len(copy.missing)
        if disk.free_bytes < copy.bytes or few:
            raise RefusedError(
                f"the disk of {disk.path} on `{self._session.host.name}` is too small",
                cause=f"{disk.free_bytes // MIB} MiB and {disk.free_inodes} inodes are free; "
                f"{copy.bytes // MIB} MiB and {len(copy.missing)} inodes are needed",
                hint="`ddtreectl prune` removes environments that nothing uses",
            )

    def _record(self, plan: TakeoverPlan) -> Provisioned:
        return Provisioned(
            backend=plan.backend,
            environment=plan.environment,
            torch=plan.torch,
            build=plan.build,
            engine=str(self._marker.get("engine") or ""),
            taken_from=plan.taken_from,
        )


def current(facts: HostFacts, backend: Backend) -> str | None:
    """The environment that a host serves a backend from: as provisioned, else as deployed last."""
    records = facts.records
    record = records.provisioned.get(backend.name)
    names = [record.environment] if record else []
    names += [
        entry.environment
        for entry in sorted(records.generations, key=lambda entry: entry.changed_at, reverse=True)
        if entry.status == "good" and entry.service and entry.service.backend == backend.name
    ]
    return next((name for name in names if name in records.environments), None)


def _interpreter(session: Session, path: str) -> Python | None:
    command = ["sh", "-c", python_fact.command(path)]
    said = session.host.run(command, deadline=COMMAND_DEADLINE)
    return python_fact.parse(Output(said.returncode, said.stdout, said.stderr))
