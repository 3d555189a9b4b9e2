"""Deploys and stops the router itself.

A new version, or other settings, need a restart: for about a second nobody listens on its port. If
the new one does not come up, the unit that ran before is put back.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from ddtreectl import bundle
from ddtreectl.apply import offline, router_list
from ddtreectl.apply.exchange import COMMAND_DEADLINE, STOP_DEADLINE, pauses
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.router import UNIT, Router
from ddtreectl.env import build
from ddtreectl.env.build import Offline
from ddtreectl.env.wheelhouse import Wheelhouse
from ddtreectl.errors import DdtreectlError, RefusedError, StepError
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import Request
from ddtreectl.facts.python import Python
from ddtreectl.hosts.protocol import check
from ddtreectl.units import lint
from ddtreectl.units.router import STOP_MARGIN, render

UP_WITHIN = 30.0
LINT_DEADLINE = 60.0


@dataclass(frozen=True)
class RouterStep:
    """One step.

    Attributes:
        title: what it does, in the imperative.
        reason: why.
        act: does it.
    """

    title: str
    reason: str
    act: Callable[[], None]


class RouterService:
    """The router's own service.

    Args:
        router: the router.
        wheelhouse: the wheels that it is installed from, or None.
        lock_wait: seconds to wait for another operator to finish.
    """

    def __init__(
        self, router: Router, wheelhouse: Wheelhouse | None = None, *, lock_wait: float = 0.0
    ) -> None:
        self._router = router
        self._session = router.session
        self._host = self._session.host
        self._layout = self._session.layout
        self._wheelhouse = wheelhouse
        self._lock_wait = lock_wait
        self._uv = ""
        self._before: bytes | None = None

    @property
    def _lock(self) -> HostLock:
        session = self._session
        return HostLock(session.host, session.layout, session.operator, wait=self._lock_wait)

    def deploy(self) -> list[RouterStep]:
        """Install and start the router as the inventory has it. Returns what was done.

        Raises:
            RefusedError: its host cannot run it.
            StepError: a step failed; the router that ran before runs again, if there was one.
        """
        session = self._session
        with locked(session, self._lock):
            self._host = session.host
            steps = self.steps()
            if not steps:
                return steps
            session.audit("router-deploy", command=session.operator.command)
            for step in steps:
                with session.report.step(step.title):
                    step.act()
            session.audit("router-deploy-done")
        return steps

    def stop(self) -> bool:
        """Stop the router and keep it stopped. Returns whether it ran."""
        session, supervisor = self._session, self._session.supervisor
        with locked(session, self._lock):
            ran = self._active()
            stopped = session.host.run(supervisor.stop(UNIT), deadline=self._patience)
            if ran:
                check(stopped, "the router does not stop")
            session.host.run(supervisor.disable([UNIT]), deadline=COMMAND_DEADLINE)
            session.audit("router-stop")
        return ran

    def steps(self) -> list[RouterStep]:
        """What `deploy` does now; none where the router is as it should be. Changes nothing.

        Raises:
            RefusedError: its host cannot run it.
        """
        if not self._facts.systemd:
            raise RefusedError(
                f"no systemd runs on `{self._host.name}`, and the router is a unit of it"
            )
        return list(self._steps())

    def _steps(self) -> Iterator[RouterStep]:
        if self._host.read(f"{self._folder}/{build.MARKER}") is None:
            yield from self._build_steps()
        same = self._host.read(self._layout.unit(UNIT)) == self._unit.encode()
        if not same:
            yield RouterStep("check its unit", "mistakes show before anything stops", self._lint)
            yield RouterStep(
                f"install {UNIT}",
                "the inventory says what is in it",
                lambda: self._install(self._unit.encode()),
            )
        if not same or not self._active():
            yield RouterStep(
                "start it", "it runs from what was installed just now", self._start_or_go_back
            )
        asked = ["systemctl", "is-enabled", "--quiet", UNIT]
        if not self._host.run(asked, deadline=COMMAND_DEADLINE).ok:
            yield RouterStep("start it at boot", "clients know no other address", self._enable)

    def _build_steps(self) -> Iterator[RouterStep]:
        if (wheelhouse := self._wheelhouse) is not None:
            yield RouterStep("have uv", "it builds environments without a network", self._have_uv)
            yield RouterStep(
                f"bring {len(wheelhouse.wheels)} wheels",
                "what the host has by its hash is not sent again",
                lambda: offline.bring_wheels(
                    self._session, wheelhouse, self._session.report.amount
                ),
            )
        yield RouterStep(
            f"install smg {self._router.settings.version}",
            "no finished environment holds it for this interpreter",
            self._build,
        )

    @cached_property
    def _facts(self) -> HostFacts:
        return self._session.certain("systemd", "python")

    @property
    def _python(self) -> Python:
        found = self._facts.python
        if found is None:
            raise RefusedError(
                f"`{self._session.python}` does not run on `{self._host.name}`",
                hint="name an interpreter with `python:`",
            )
        return found

    @property
    def _pins(self) -> str:
        """The pinned versions, but for the one that the inventory chooses."""
        lines = bundle.constraints().read_text().splitlines()
        return "\n".join(line for line in lines if not line.startswith("smg=="))

    @cached_property
    def _folder(self) -> str:
        """Its environment; not among those of services, which know nothing of it."""
        version = self._router.settings.version
        held = self._wheelhouse.identity if self._wheelhouse else ""
        made_of = "\n".join([version, self._python.abi, self._pins, held])
        name = f"smg-{version}-{sha256(made_of.encode()).hexdigest()[:12]}"
        return f"{router_list.folder(self._session)}/environments/{name}"

    @cached_property
    def _unit(self) -> str:
        return render(self._folder, router_list.path(self._session), self._router.settings)

    @property
    def _patience(self) -> float:
        return min(self._router.settings.drain_timeout + 2 * STOP_MARGIN, STOP_DEADLINE)

    # ---- what the steps do ----

    def _have_uv(self) -> None:
        self._uv = offline.have_uv(
            self._session, self._python, self._wheelhouse, self._session.report.amount
        )

    def _build(self) -> None:
        session, folder = self._session, self._folder
        source = None
        if self._wheelhouse is not None:
            wheels = self._layout.wheelhouse(self._wheelhouse.identity)
            source = Offline(self._uv, wheels, self._layout.package_cache)
        constraints = f"{folder}.constraints.txt"
        session.host.put(constraints, self._pins.encode())
        where = f"the router's environment on `{session.host.name}`"
        argv = build.create(session.python, folder, source)
        check(session.host.run(argv, deadline=build.BUILD_DEADLINE), f"{where} cannot be made")
        packages = [f"smg=={self._router.settings.version}"]
        argv = build.install(folder, packages, constraints=constraints, source=source)
        hint = (
            "`pip download -d DIR -c constraints.txt smg` fills a wheelhouse"
            if source
            else "pip on the host decides where packages come from: `pip config list` there; "
            "without a network: `--wheelhouse`"
        )
        done = session.host.run(argv, deadline=build.BUILD_DEADLINE)
        check(done, f"smg cannot be installed in {where}", hint=hint)
        runs = session.host.run([f"{folder}/bin/smg", "--version"], deadline=COMMAND_DEADLINE)
        check(runs, f"smg does not run in {where}")
        content = build.marker(folder.rpartition("/")[2], self._python.abi, {})
        session.host.put(f"{folder}/{build.MARKER}", content)

    def _lint(self) -> None:
        staged = f"{router_list.folder(self._session)}/{UNIT}"
        self._session.host.put(staged, self._unit.encode())
        done = self._session.host.run(lint.command(staged), deadline=LINT_DEADLINE)
        if wrong := lint.complaints(done.returncode, done.stdout + done.stderr):
            raise StepError(f"unit `{UNIT}` has mistakes", cause=wrong)

    def _install(self, text: bytes) -> None:
        session = self._session
        if self._before is None:
            self._before = session.host.read(self._layout.unit(UNIT))
        if session.host.read(f"{router_list.folder(session)}/workers.json") is None:
            router_list.change(session, "remove", "")  # an empty list: one that is missing is late
        session.host.put(self._layout.unit(UNIT), text)
        done = session.host.run(session.supervisor.reload(), deadline=COMMAND_DEADLINE)
        check(done, "the service manager cannot read its units again")

    def _start_or_go_back(self) -> None:
        try:
            self._start()
        except DdtreectlError as error:
            if self._before is None:
                raise
            self._session.report.say(f"  ! {error.message}; the router that ran before comes back")
            self._install(self._before)
            self._start()
            raise StepError(
                f"{error.message}; the one that ran before runs again",
                cause=error.cause,
                hint=error.hint,
            ) from error

    def _start(self) -> None:
        session, supervisor = self._session, self._session.supervisor
        session.host.run(supervisor.reset_failed(UNIT), deadline=COMMAND_DEADLINE)
        session.host.run(supervisor.stop(UNIT), deadline=self._patience)
        started = session.host.run(supervisor.start(UNIT, 0), deadline=COMMAND_DEADLINE)
        check(started, f"unit `{UNIT}` cannot be started")
        end = time.monotonic() + UP_WITHIN
        for _ in pauses(session.interrupts):
            answer = session.ask([Request(f"{self._router.url}/health", 5.0)], 15.0)[0]
            if answer.ok and self._active():
                return
            if time.monotonic() > end:
                log = session.host.run(supervisor.journal(UNIT, 20, follow=False), deadline=30.0)
                raise StepError(
                    f"the router does not answer within {UP_WITHIN:.0f} s",
                    cause=f"{answer}\n{log.stdout[-1500:]}",
                    hint=f"`journalctl -u {UNIT}` on `{session.host.name}`",
                )

    def _enable(self) -> None:
        session = self._session
        done = session.host.run(session.supervisor.enable(UNIT), deadline=COMMAND_DEADLINE)
        check(done, f"unit `{UNIT}` cannot be enabled")

    def _active(self) -> bool:
        asked = ["systemctl", "is-active", "--quiet", UNIT]
        return self._session.host.run(asked, deadline=COMMAND_DEADLINE).ok
