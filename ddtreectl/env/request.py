"""From what is wanted and what a host is to one environment: which, from what, and why."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddtreectl.env.backends import BACKENDS, Backend, BackendName
from ddtreectl.env.cuda import Accelerators, Capability, Choice, choose
from ddtreectl.env.lock import EnvironmentLock, pinned
from ddtreectl.env.wheel import Wheel
from ddtreectl.errors import RefusedError
from ddtreectl.facts.driver import version_numbers
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.python import Python
from ddtreectl.facts.records import Provisioned
from ddtreectl.inventory.environment import EnvironmentSettings
from ddtreectl.inventory.model import HostEntry

if TYPE_CHECKING:
    from ddtreectl.env.wheelhouse import Wheelhouse

MIN_PYTHON = (3, 11)


@dataclass(frozen=True)
class Request:
    """One environment for one host.

    Attributes:
        environment: its name.
        lock: what it is built from; None for one that was taken over, which nothing here builds.
        choice: its CUDA build, and why.
        capabilities: of the GPUs that it is to run on, as far as they are known.
        wheelhouse: the wheels on the operator's machine, or None.
        held: the wheels on the host, as a wheelhouse's identity, where they are to be there.
        torch_wheel: the name of torch's wheel in the wheelhouse.
        taken_from: the host that it was taken over from, or nothing.
    """

    environment: str
    lock: EnvironmentLock | None
    choice: Choice
    capabilities: tuple[Capability, ...] = ()
    wheelhouse: "Wheelhouse | None" = None
    held: str | None = None
    torch_wheel: str | None = None
    taken_from: str = ""


@dataclass(frozen=True)
class Ingredients:
    """What ddtreectl brings to an environment.

    Attributes:
        engine: the wheel of the engine.
        constraints: the versions that the engine is tested with.
    """

    engine: Wheel
    constraints: str


def accelerators(entry: HostEntry, facts: HostFacts) -> Accelerators:
    """The driver of a host, and the GPUs that its slots use."""
    wanted = sorted({gpu for slot in entry.slots.values() for gpu in slot.gpus})
    known = {gpu.index: gpu.compute_capability for gpu in facts.gpus.gpus}
    version = facts.driver.version or facts.gpus.driver
    return Accelerators(
        needed=bool(wanted),
        driver=version_numbers(version) if version else None,
        capabilities=tuple(known.get(index) for index in wanted),
    )


def resolve(
    entry: HostEntry,
    facts: HostFacts,
    brought: Ingredients,
    backend: BackendName = "engine",
    settings: EnvironmentSettings | None = None,
) -> Request:
    """The environment that `settings` ask for on a host; by default those of the inventory.

    Raises:
        RefusedError: there can be none; the message says why.
        UsageError: the wheelhouse is none.
    """
    settings = settings or entry.environment
    made = BACKENDS[backend]
    torch = settings.torch or made.torch or pinned("torch", brought.constraints)
    host = accelerators(entry, facts)
    if settings.wheelhouse is None:
        python = interpreter(entry, facts, needs_venv=True)
        choice = choose(host, settings.cuda)
        lock = _lock(made, torch, choice.build, python, brought)
        return Request(lock.name, lock, choice, _known(host))
    from ddtreectl.env.wheelhouse import Wheelhouse

    python = interpreter(entry, facts, needs_venv=False)
    wheelhouse = Wheelhouse.open(Path(settings.wheelhouse).expanduser())
    torches = wheelhouse.torches(torch, python)
    choice = choose(host, settings.cuda, torches)
    if choice.build not in torches:
        raise RefusedError(
            f"the wheelhouse has no torch {torch} for `{choice.build}`",
            cause="\n".join(wheel.name for wheel in torches.values()),
            hint="it has to be the build that the host needs: add that wheel to the wheelhouse",
        )
    lock = _lock(
        made, torch, choice.build, python, brought, wheelhouse.identity, wheelhouse.requirements
    )
    return Request(
        lock.name,
        lock,
        choice,
        _known(host),
        wheelhouse=wheelhouse,
        held=wheelhouse.identity,
        torch_wheel=torches[choice.build].name,
    )


def provisioned(
    entry: HostEntry,
    facts: HostFacts,
    brought: Ingredients,
    backend: BackendName = "engine",
) -> Request:
    """The environment for a deploy: what was provisioned, with the engine that is deployed now.

    Where nothing was, or the inventory says otherwise since, it is what the inventory asks for.

    Raises:
        RefusedError: there can be none; the message says why.
    """
    record = facts.records.provisioned.get(backend)
    if record is None or not _still_wanted(record, entry.environment):
        return resolve(entry, facts, brought, backend)
    host = accelerators(entry, facts)
    choice = Choice(record.build, "provisioned")
    if record.taken_from:
        if BACKENDS[backend].version is None and record.engine != brought.engine.sha256:
            raise RefusedError(
                f"the environment that was taken over from `{record.taken_from}` has another engine"
                " than this ddtreectl deploys",
                hint="take it over again once it is deployed there, or provision a wheelhouse",
            )
        return Request(record.environment, None, choice, _known(host), taken_from=record.taken_from)
    python = interpreter(entry, facts, needs_venv=record.wheelhouse is None)
    made = BACKENDS[backend]
    lock = _lock(
        made, record.torch, record.build, python, brought, record.wheelhouse, record.requirements
    )
    return Request(
        lock.name,
        lock,
        choice,
        _known(host),
        held=record.wheelhouse,
        torch_wheel=record.torch_wheel,
    )


def _still_wanted(record: Provisioned, settings: EnvironmentSettings) -> bool:
    """Whether nothing that the inventory says contradicts what was provisioned."""
    return settings.torch in {None, record.torch} and settings.cuda in {"auto", record.build}


def _lock(
    backend: Backend,
    torch: str,
    build: str,
    python: Python,
    brought: Ingredients,
    wheelhouse: str | None = None,
    requirements: str | None = None,
) -> EnvironmentLock:
    ours = backend.version is None
    return EnvironmentLock(
        backend=backend,
        torch=torch,
        build=build,
        abi=f"{python.abi} {'.'.join(map(str, python.version))}",
        constraints=brought.constraints if ours else "",
        wheel=brought.engine if ours else None,
        wheelhouse=wheelhouse,
        requirements=requirements,
    )


def _known(host: Accelerators) -> tuple[Capability, ...]:
    return tuple(sorted({entry for entry in host.capabilities if entry is not None}))


def interpreter(entry: HostEntry, facts: HostFacts, *, needs_venv: bool) -> Python:
    """The interpreter that environments of a host are made from.

    Raises:
        RefusedError: there is none that will do.
    """
    named = entry.python or "python3"
    if facts.python is None:
        raise RefusedError(
            f"`{named}` does not run on the host; name an interpreter with `python:`"
        )
    if facts.python.version[:2] < MIN_PYTHON:
        version = ".".join(map(str, facts.python.version))
        raise RefusedError(
            f"`{named}` is Python {version}; the engine needs 3.11 or newer (`python:`)"
        )
    if needs_venv and not facts.python.has_venv:
        raise RefusedError(
            f"`{named}` cannot make environments; on Debian: apt-get install python3-venv",
            hint="a wheelhouse needs none of it: `--wheelhouse DIR`",
        )
    return facts.python
