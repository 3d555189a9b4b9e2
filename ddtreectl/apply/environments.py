"""Builds, verifies and records one environment on a host."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial

from ddtreectl import bundle
from ddtreectl.apply import claims, offline
from ddtreectl.apply.claims import claim
from ddtreectl.apply.session import Session
from ddtreectl.apply.verification import inspect, raise_first, unused_by
from ddtreectl.env import build
from ddtreectl.env.backends import BACKENDS
from ddtreectl.env.build import Offline
from ddtreectl.env.cuda import CPU
from ddtreectl.env.inspection import Inspection
from ddtreectl.env.lock import EnvironmentLock
from ddtreectl.env.request import Ingredients, Request
from ddtreectl.env.verify import Expected
from ddtreectl.env.wheel import engine_wheel
from ddtreectl.errors import RefusedError
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.output import json_object
from ddtreectl.facts.records import Provisioned
from ddtreectl.hosts.protocol import check
from ddtreectl.hosts.transfer import LocalFile, Store

COMMAND_DEADLINE = 60.0
MIB = 1 << 20


class BuildAction(StrEnum):
    """What a step of a build does."""

    HAVE_UV = "have-uv"
    BRING_WHEELS = "bring-wheels"
    MAKE = "make"
    INSTALL = "install"
    VERIFY = "verify"
    MARK_FINISHED = "mark-finished"
    NOTE = "note"


@dataclass(frozen=True)
class BuildStep:
    """One step of a build.

    Attributes:
        action: what it does.
        title: the same for a reader, in the imperative.
        reason: why it is needed.
        act: does it.
    """

    action: BuildAction
    title: str
    reason: str
    act: Callable[[], None]


def ingredients() -> Ingredients:
    """What this ddtreectl brings to an environment."""
    return Ingredients(engine_wheel(), bundle.constraints().read_text())


class EnvironmentBuilder:
    """Brings one environment to a host.

    Args:
        session: the operator at work on the host.
        request: the environment.
        facts: of the host.
        unit_text: a unit that will run from it; its sandbox is the one for verification.
    """

    def __init__(
        self, session: Session, request: Request, facts: HostFacts, unit_text: str
    ) -> None:
        self._session = session
        self._host = session.host
        self._layout = session.layout
        self._request = request
        self._facts = facts
        self._unit_text = unit_text
        self._folder = self._layout.environment(request.environment)
        self._inputs = f"{self._layout.environments}/.inputs/{request.environment}"
        self._store = Store(self._host, self._layout.wheels)
        self._inspection = Inspection()
        self._uv = ""

    @property
    def finished(self) -> bool:
        """Whether the host has it already."""
        return self._request.environment in self._facts.records.environments

    def missing(self) -> tuple[list[LocalFile], int]:
        """The wheels that the host does not have yet, and the bytes that are to be sent."""
        wheelhouse = self._request.wheelhouse
        return self._store.missing(wheelhouse.files) if wheelhouse else ([], 0)

    def steps(self) -> Iterator[BuildStep]:
        """The steps that lead to it; none where it is finished and recorded."""
        if not self.finished:
            if self._request.lock is None:
                raise RefusedError(
                    f"environment `{self._request.environment}` is gone from `{self._host.name}`",
                    hint=f"provision again: it came from `{self._request.taken_from}`",
                )
            yield from self._build_steps(self._request.lock)
        if self._facts.records.provisioned.get(self._record.backend) != self._record:
            yield BuildStep(
                BuildAction.NOTE,
                "note it on the host",
                "deploys go by what was provisioned",
                self._write_record,
            )

    def _build_steps(self, lock: EnvironmentLock) -> Iterator[BuildStep]:
        name = self._request.environment
        if self._request.held is not None:
            yield BuildStep(
                BuildAction.HAVE_UV,
                "have uv",
                "it builds environments without a network",
                self._have_uv,
            )
        if wheelhouse := self._request.wheelhouse:
            files, size = self.missing()
            yield BuildStep(
                BuildAction.BRING_WHEELS,
                f"bring {len(files)} of {len(wheelhouse.wheels)} wheels, {size / MIB:.0f} MiB",
                "what the host has by its hash is not sent again",
                self._bring_wheels,
            )
        make = partial(self._create, lock)
        yield BuildStep(BuildAction.MAKE, f"make {name}", "it is built where it stays", make)
        yield BuildStep(
            BuildAction.INSTALL,
            f"install torch {lock.torch} ({self._request.choice.build}) and "
            f"{lock.backend.distribution}",
            self._request.choice.reason,
            partial(self._install, lock),
        )
        yield BuildStep(
            BuildAction.VERIFY,
            "verify it as the service will run it",
            "packages that do not fit each other show before anything is stopped",
            partial(self._verify, lock),
        )
        yield BuildStep(
            BuildAction.MARK_FINISHED,
            "mark it finished",
            "an interrupted build never looks like one",
            partial(self._mark, lock),
        )

    @property
    def _record(self) -> Provisioned:
        request, lock = self._request, self._request.lock
        before = self._facts.records.provisioned.get(request.environment.partition("-")[0])
        if lock is None:
            assert before is not None  # noqa: S101 - a request without a lock comes from a record
            return before
        return Provisioned(
            backend=lock.backend.name,
            environment=request.environment,
            torch=lock.torch,
            build=request.choice.build,
            wheelhouse=request.held,
            requirements=lock.requirements,
            torch_wheel=request.torch_wheel,
            engine=lock.wheel.sha256 if lock.wheel else "",
        )

    # ---- what the steps do ----

    def _have_uv(self) -> None:
        python = self._facts.python
        assert python is not None  # noqa: S101 - without it there is no request
        wheelhouse = self._request.wheelhouse
        self._uv = offline.have_uv(self._session, python, wheelhouse, self._session.report.amount)

    def _bring_wheels(self) -> None:
        wheelhouse = self._request.wheelhouse
        assert wheelhouse is not None  # noqa: S101 - the step is there only with one
        offline.bring_wheels(self._session, wheelhouse, self._session.report.amount)

    def _source(self) -> Offline | None:
        held = self._request.held
        if held is None:
            return None
        return Offline(self._uv, self._layout.wheelhouse(held), self._layout.package_cache)

    def _create(self, lock: EnvironmentLock) -> None:
        host = self._host
        claim(self._session, [self._request.environment])
        if lock.wheel is not None:
            host.put(f"{self._inputs}/{lock.wheel.name}", lock.wheel.content)
        host.put(f"{self._inputs}/constraints.txt", lock.pins.encode())
        if lock.requirements is not None:
            host.put(f"{self._inputs}/requirements.txt", lock.requirements.encode())
        argv = build.create(self._session.python, self._folder, self._source())
        made = host.run(argv, deadline=build.BUILD_DEADLINE)
        check(made, f"{self._where} cannot be made")

    def _install(self, lock: EnvironmentLock) -> None:
        source = self._source()
        packages = list(lock.packages)
        if lock.wheel is not None:
            packages.append(f"{self._inputs}/{lock.wheel.name}{lock.extras}")
        if source is not None and self._request.torch_wheel:
            packages.append(f"{source.wheels}/{self._request.torch_wheel}")
        elif lock.backend.version is not None:
            packages.append(f"torch=={lock.torch}")
        listed = lock.requirements is not None
        argv = build.install(
            self._folder,
            packages,
            constraints=None if listed else f"{self._inputs}/constraints.txt",
            requirements=f"{self._inputs}/requirements.txt" if listed else None,
            source=source,
        )
        done = self._host.run(argv, deadline=build.BUILD_DEADLINE)
        hint = (
            "add what is missing to the wheelhouse: `pip download -d DIR -c constraints.txt …`"
            if source
            else "pip on the host decides where packages come from: `pip config list` there"
        )
        check(done, f"the packages of {self._where} cannot be installed", hint=hint)

    def _verify(self, lock: EnvironmentLock) -> None:
        # Without a wheelhouse, a host without GPUs takes whichever torch its index has.
        any_build = self._request.held is None and self._request.choice.build == CPU
        expected = Expected(
            lock.backend,
            build=None if any_build else self._request.choice.build,
            torch=lock.torch,
            capabilities=self._request.capabilities,
            unused=unused_by(self._unit_text),
        )
        self._inspection, found = inspect(
            self._session, self._facts, self._folder, self._unit_text, expected
        )
        raise_first(found, f"the packages of {self._where} do not fit")

    def _mark(self, lock: EnvironmentLock) -> None:
        content = build.marker(
            self._request.environment,
            lock.abi,
            self._inspection.fingerprint(),
            build=self._request.choice.build,
            engine=lock.wheel.sha256 if lock.wheel else "",
        )
        self._host.put(f"{self._folder}/{build.MARKER}", content)

    def _write_record(self) -> None:
        write_record(self._session, self._record)
        if self._request.wheelhouse is not None:
            self._drop_old_wheels()

    def _drop_old_wheels(self) -> None:
        """Remove the wheelhouses that no next build would be made from, and wheels of them alone.

        The store and a wheelhouse hold the same files by hard links: one that is left with a single
        link is in no wheelhouse any more. One that was cut off may be gone on with for a day.
        """
        records = self._facts.records.provisioned.values()
        kept = {record.wheelhouse for record in records if record.backend != self._record.backend}
        keep = sorted(name for name in {*kept, self._request.held} if name)
        script = (
            f"{claims.functions(self._layout)} set -e; wheels=$1 houses=$2; shift 2; fresh=; "
            'for d in "$houses"/*; do name=${d##*/}; '
            'case " $* " in *" $name "*) ! claimed "wheelhouse-$name" || fresh=1; continue;; esac; '
            'release "wheelhouse-$name"; '
            'if claimed "wheelhouse-$name"; then fresh=1; else rm -rf -- "$d"; fi; done; '
            # What another root has just sent is in no wheelhouse yet.
            'find "$wheels" -type f -links 1 \\( ${fresh:+-mtime +0} ! -name "*.part" '
            "-o -mtime +0 \\) -delete"
        )
        words = ["sh", "-c", script, "ddtreectl-wheels", self._layout.wheels]
        done = self._host.run(
            [*words, self._layout.wheelhouse("").rstrip("/"), *keep], deadline=COMMAND_DEADLINE
        )
        check(done, f"old wheels cannot be removed from `{self._host.name}`")

    @property
    def _where(self) -> str:
        return f"environment `{self._request.environment}` on `{self._host.name}`"


def write_record(session: Session, record: Provisioned) -> None:
    """Note on the host what was provisioned for a backend."""
    held = [claims.wheelhouse(record.wheelhouse)] if record.wheelhouse else []
    claim(session, [record.environment, *held])
    path = session.layout.provisioned
    content = json_object((session.host.read(path) or b"{}").decode(errors="replace"))
    known = {name: content[name] for name in BACKENDS if name in content}
    known[record.backend] = asdict(record)
    session.host.put(path, json.dumps(known, sort_keys=True).encode())
