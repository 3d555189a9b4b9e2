"""Everything that can fail is done and checked here, while the old service still serves."""

from collections.abc import Callable
from shlex import join

from ddtreectl.apply import sglang
from ddtreectl.apply.environments import BuildAction, EnvironmentBuilder
from ddtreectl.apply.session import Session
from ddtreectl.env.request import Request
from ddtreectl.errors import StepError
from ddtreectl.facts.host import HostFacts
from ddtreectl.plan.step import Candidate
from ddtreectl.units import lint, sandbox
from ddtreectl.units.supervisor import Systemd

LINT_DEADLINE = 60.0
INSPECT_DEADLINE = 300.0


def build_environment(
    session: Session,
    candidate: Candidate,
    request: Request,
    facts: HostFacts,
    begin: Callable[[BuildAction], None],
) -> None:
    """Build the environment of `candidate` at its final path, verify it, and mark it finished.

    Before each step of the build `begin` is called, and may end it by raising.
    """
    for step in EnvironmentBuilder(session, request, facts, candidate.unit_text).steps():
        begin(step.action)
        session.report.detail(step.title)
        step.act()


def check_unit(session: Session, slot: str, candidate: Candidate) -> None:
    """Let systemd read the unit as it would, and accept no complaint."""
    staged = f"{session.layout.generation(slot, candidate.number)}/{candidate.unit}"
    result = session.host.run(lint.command(staged), deadline=LINT_DEADLINE)
    if result.returncode == lint.NOT_INSTALLED:
        session.report.say("  ! systemd-analyze is not installed: the unit was not checked")
    complaints = lint.complaints(result.returncode, result.stdout + result.stderr)
    if complaints:
        raise StepError(f"unit `{candidate.unit}` has mistakes", cause=complaints)


def check_model(session: Session, candidate: Candidate) -> None:
    """Let the engine read what the service would load, with the rights that it will have."""
    service = candidate.service
    if service.backend == "sglang":
        _check_sglang(session, candidate)
        return
    engine = f"{session.layout.environment(candidate.environment)}/bin/ddtree-engine"
    argv = [engine, "inspect", "--model", service.model, "--drafter", service.drafter, "--json"]
    result = session.host.run(_as_the_unit(session, candidate, argv), deadline=INSPECT_DEADLINE)
    if not result.ok:
        raise StepError(
            f"model `{service.model}` with drafter `{service.drafter}` cannot be served",
            cause=result.said.removeprefix("error: ")[-2000:],
            hint="the service has a user of its own: others may have to be let read the files"
            if "Permission denied" in result.said
            else "",
        )


def _check_sglang(session: Session, candidate: Candidate) -> None:
    python = f"{session.layout.environment(candidate.environment)}/bin/python"
    argv = sglang.inspection(python, candidate.service)
    result = session.host.run(_as_the_unit(session, candidate, argv), deadline=sglang.DEADLINE)
    cards = [session.gather(only=("gpus",)).gpus.called(uuid) for uuid in candidate.gpus]
    capabilities = [card.compute_capability for card in cards if card and card.compute_capability]
    sglang.judge(session, candidate.service, result, capabilities)


def _as_the_unit(session: Session, candidate: Candidate, argv: list[str]) -> list[str]:
    """The command that runs `argv` in the unit's sandbox, on hosts that can."""
    if not isinstance(session.supervisor, Systemd):
        return argv
    confined = sandbox.command(argv, candidate.unit_text, limit=INSPECT_DEADLINE)
    script = f"command -v systemd-run >/dev/null || exec {join(argv)}; exec {join(confined)}"
    return ["sh", "-c", script]
