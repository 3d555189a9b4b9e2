"""Looks at an environment from within, as the service that runs from it will see it."""

from ddtreectl.apply.session import Session
from ddtreectl.env import inspection, verify
from ddtreectl.env.inspection import Inspection
from ddtreectl.env.verify import Expected, Problem
from ddtreectl.errors import StepError
from ddtreectl.facts.host import HostFacts
from ddtreectl.units import sandbox

COMMAND_DEADLINE = 60.0


def inspect(
    session: Session, facts: HostFacts, folder: str, unit_text: str, expected: Expected
) -> tuple[Inspection, list[Problem]]:
    """Look at an environment from within, in the sandbox of a unit, and judge it.

    Args:
        session: the operator at work.
        facts: of the host.
        folder: the environment.
        unit_text: the unit; where no systemd runs, there is no sandbox.
        expected: what the environment is to be.
    """
    argv = inspection.argv(f"{folder}/bin/python", expected.backend)
    boxed = facts.systemd and facts.systemd_run
    if boxed:
        argv = sandbox.command(argv, unit_text, limit=inspection.DEADLINE)
    done = session.host.run(
        argv, stdin=inspection.program(), deadline=inspection.DEADLINE + COMMAND_DEADLINE
    )
    if boxed and done.returncode in sandbox.NOT_MADE and not done.stdout:
        raise StepError(
            f"the sandbox of the service cannot be made on `{session.host.name}`",
            cause=done.said,
            hint=f"systemd.exec(5), `Process exit codes`, says what {done.returncode} stands for",
        )
    found = inspection.parse(done.stdout)
    told = verify.problems(found, expected)
    if told and not found.complete:
        told = [*told, Problem("it said", done.stderr[-1000:])] if done.stderr.strip() else told
    return found, told


def raise_first(found: list[Problem], what: str) -> None:
    """Raise the first of `found`, with the others in its cause; nothing where there is none.

    Raises:
        StepError: there is one.
    """
    if found:
        rest = [str(problem) for problem in found[1:]]
        cause = "\n".join([found[0].cause, *rest]).strip()
        raise StepError(f"{what}: {found[0].what}", cause=cause, hint=found[0].hint)


def unused_by(unit_text: str) -> frozenset[str]:
    """The packages that a unit tells its server not to use.

    SGLang imports xgrammar for structured output alone, and not at all without it.
    """
    return frozenset({"xgrammar"} if "--grammar-backend none" in unit_text else ())
