"""All checks of a host at once. Nothing on it is changed."""

from collections.abc import Iterator

from ddtreectl.apply.session import Session
from ddtreectl.apply.verification import inspect, unused_by
from ddtreectl.env import request
from ddtreectl.env.backends import BACKENDS
from ddtreectl.env.cuda import CPU, choose, unsuited
from ddtreectl.env.lock import build_in
from ddtreectl.env.request import accelerators
from ddtreectl.env.verify import Expected
from ddtreectl.errors import DdtreectlError, RefusedError, UnreachableError
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.records import Provisioned
from ddtreectl.inventory.layout import slot_units
from ddtreectl.plan.doctor import Check, checks

COMMAND_DEADLINE = 60.0


def examine(session: Session) -> list[Check]:
    """Every check of a host.

    Raises:
        UnreachableError: it does not answer; then nothing is known.
    """
    try:
        facts = session.gather()
    except UnreachableError:
        raise
    except DdtreectlError as error:  # such as sudo that wants a password
        return [Check("access", "failed", error.message, error.cause, error.hint)]
    name = session.host.name
    return [
        Check("access", "ok", "commands run as root"),
        *_interpreter(session, facts),
        *checks(name, session.entry, facts),
        *_cuda(session, facts),
        *_unfinished(session, facts),
        *_environments(session, facts),
    ]


def _interpreter(session: Session, facts: HostFacts) -> Iterator[Check]:
    from ddtreectl.env import uv

    own = session.layout.tool("uv", uv.version())
    path = uv.found(session.host.run(uv.find(own), deadline=COMMAND_DEADLINE).stdout)
    try:
        python = request.interpreter(session.entry, facts, needs_venv=path is None)
    except RefusedError as error:
        yield Check("python", "failed", error.message, error.cause, error.hint)
    else:
        version = ".".join(map(str, python.version))
        yield Check("python", "ok", f"Python {version}, {python.abi}")
    if path is not None:
        yield Check("uv", "ok", path)
    else:
        yield Check("uv", "ok", "not there yet; `ddtreectl provision --wheelhouse` brings it")


def _cuda(session: Session, facts: HostFacts) -> Iterator[Check]:
    try:
        choice = choose(accelerators(session.entry, facts), session.entry.environment.cuda)
    except RefusedError as error:
        yield Check("cuda", "failed", error.message, error.cause, error.hint)
    else:
        yield Check("cuda", "ok", f"environments are built for {choice.build}: {choice.reason}")


def _unfinished(session: Session, facts: HostFacts) -> Iterator[Check]:
    """Folders of environments that no build has finished."""
    for name in sorted(facts.records.unfinished):
        yield Check(
            "environment",
            "warning",
            f"{name} is not finished",
            cause="its build was interrupted, or goes on now",
            hint="the same `ddtreectl provision` or deploy builds it anew; "
            f"or remove it: `ddtreectl prune {session.host.name}`",
        )


def _environments(session: Session, facts: HostFacts) -> Iterator[Check]:
    """Each environment that something runs from, or will, looked at as the service sees it."""
    records = facts.records
    recorded = {entry.environment: entry for entry in records.provisioned.values()}
    used = {
        generation.environment: generation.service.backend
        for generation in records.generations
        if generation.service is not None and generation.status == "good"
    }
    wanted = {name: entry.backend for name, entry in recorded.items()} | used
    for name, backend in sorted(wanted.items()):
        if name not in records.environments:
            yield Check(
                "environment",
                "failed",
                f"{name} is gone",
                hint="`ddtreectl provision` builds it anew",
            )
        elif backend in BACKENDS:
            yield from _environment(session, facts, name, backend, recorded.get(name))


def _environment(
    session: Session, facts: HostFacts, name: str, backend: str, record: Provisioned | None
) -> Iterator[Check]:
    host = accelerators(session.entry, facts)
    build = record.build if record else build_in(name)
    expected = Expected(
        BACKENDS[backend],
        build=None if build == CPU else build,
        torch=record.torch if record and record.torch else None,
        capabilities=tuple(entry for entry in host.capabilities if entry is not None),
        unused=unused_by(_unit(session, facts)),
    )
    try:
        with session.report.step(f"look into environment {name}"):
            folder = session.layout.environment(name)
            found, told = inspect(session, facts, folder, _unit(session, facts), expected)
    except UnreachableError:
        raise
    except DdtreectlError as error:
        yield Check("environment", "failed", f"{name}: {error.message}", error.cause, error.hint)
        return
    for reason in unsuited(build, host):
        yield Check(
            "environment",
            "failed",
            f"{name}: {build} does not fit the host: {reason}",
            hint="provision again: the build is chosen by driver and GPUs",
        )
    for problem in told:
        yield Check("environment", "failed", f"{name}: {problem.what}", problem.cause, problem.hint)
    if not told:
        torch = found.torch.version if found.torch else "none"
        count = len(found.libraries)
        yield Check(
            "environment",
            "ok",
            f"{name}: torch {torch}, {len(found.distributions)} packages, {count} shared objects",
        )


def _unit(session: Session, facts: HostFacts) -> str:
    """A unit of the host, whose sandbox is the one to look from; without one, there is none."""
    names = [unit for slot in session.entry.slots for unit in slot_units(slot)]
    return next((facts.unit_files[name] for name in names if name in facts.unit_files), "")
