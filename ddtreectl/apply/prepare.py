"""Everything that can fail is done and checked here, while the old service still serves."""

from shlex import join

from ddtreectl import bundle
from ddtreectl.apply.session import Session
from ddtreectl.env import build
from ddtreectl.env.wheel import engine_wheel
from ddtreectl.errors import StepError
from ddtreectl.hosts.protocol import check
from ddtreectl.plan.step import Candidate
from ddtreectl.units import lint, sandbox
from ddtreectl.units.supervisor import Systemd

LINT_DEADLINE = 60.0
INSPECT_DEADLINE = 300.0


def build_environment(session: Session, candidate: Candidate, abi: str) -> None:
    """Build the environment of `candidate` at its final path, verify it, and mark it finished."""
    name, host, layout = candidate.environment, session.host, session.layout
    folder = layout.environment(name)
    wheel = engine_wheel()
    inputs = f"{layout.environments}/.inputs/{name}"
    host.put(f"{inputs}/{wheel.name}", wheel.content)
    host.put(f"{inputs}/constraints.txt", bundle.constraints().read_bytes())
    where = f"environment `{name}` on `{host.name}`"
    session.report.detail("making the folder")
    made = host.run(build.create(session.python, folder), deadline=build.BUILD_DEADLINE)
    check(made, f"{where} cannot be made")
    session.report.detail("installing packages")
    argv = build.install(folder, f"{inputs}/{wheel.name}", f"{inputs}/constraints.txt")
    installed = host.run(argv, deadline=build.BUILD_DEADLINE)
    check(
        installed,
        f"the packages of {where} cannot be installed",
        hint="pip on the host decides where packages come from: `pip config list` there",
    )
    session.report.detail("verifying")
    consistent = host.run(build.consistent(folder), deadline=build.VERIFY_DEADLINE)
    check(consistent, f"the packages of {where} do not fit together")
    imported = host.run(build.fingerprint(folder), deadline=build.VERIFY_DEADLINE)
    check(imported, f"the engine cannot be imported in {where}")
    host.put(f"{folder}/{build.MARKER}", build.marker(name, abi, imported.stdout))


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


def _as_the_unit(session: Session, candidate: Candidate, argv: list[str]) -> list[str]:
    """The command that runs `argv` in the unit's sandbox, on hosts that can."""
    if not isinstance(session.supervisor, Systemd):
        return argv
    confined = sandbox.command(argv, candidate.unit_text, limit=INSPECT_DEADLINE)
    script = f"command -v systemd-run >/dev/null || exec {join(argv)}; exec {join(confined)}"
    return ["sh", "-c", script]
