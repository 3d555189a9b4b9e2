"""Prints the plan of one slot, or what was done to it."""

from ddtreectl.apply.deploy import Outcome
from ddtreectl.cli import output
from ddtreectl.errors import ExitCode
from ddtreectl.plan.step import Plan


def show(plan: Plan, *, as_json: bool) -> int:
    """Print a plan that is not applied; a refused one is a failure."""
    if as_json:
        output.document({"applied": False, "plan": output.plan_document(plan)})
    else:
        output.plan(plan)
    return int(ExitCode.FAILED if plan.refusals else ExitCode.DONE)


def done(outcome: Outcome, verb: str, *, as_json: bool) -> int:
    """Print what was done."""
    plan = outcome.plan
    if as_json:
        output.document(
            {
                "applied": outcome.applied,
                "recovered": outcome.recovered,
                "plan": output.plan_document(plan),
            }
        )
        return int(ExitCode.DONE)
    console = output.stdout()
    for note in () if outcome.applied else plan.notes:
        console.print(note)
    if plan.candidate:
        service = plan.candidate.service
        console.print(
            f"{plan.host}/{plan.slot}: generation {plan.candidate.number} {verb}, mode "
            f"{service.mode}, budget {service.budget}, port {service.port}"
            if outcome.applied or outcome.recovered is not None
            else f"{plan.host}/{plan.slot}: nothing to do"
        )
    elif outcome.recovered is not None:
        console.print(f"{plan.host}/{plan.slot}: set right; nothing serves")
    return int(ExitCode.DONE)
