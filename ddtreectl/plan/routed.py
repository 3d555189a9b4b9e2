"""Plans of slots behind a router: take the worker out first, put it in last. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from ddtreectl.facts.router import RouterFacts
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.inventory.workers import Worker, out_of_reach
from ddtreectl.plan import standby
from ddtreectl.plan.step import Action, Phase, Plan, Step

_TOUCHES = {Action.STOP, Action.AWAIT_RELEASE, Action.INSTALL_UNIT, Action.START}
"""Steps that a request in progress could notice."""

SYNC = "`ddtreectl router sync` puts in what serves"


def routed(plan: Plan, worker: Worker, router: RouterFacts, settings: RouterSettings) -> Plan:
    """`plan`, as it has to be for a slot that is `worker` of the router.

    A router that is not there does not stand in the way of a plan: a note says what its clients
    will see.
    """
    by = (router.moved or {}).get(worker.name)
    if by is not None and plan.candidate is not None:
        told = f"the service of this slot was moved to `{by}`, which stands for it at the router"
        hint = f"`ddtreectl router forget {worker.name}` ends that"
        return replace(plan, refusals=(*plan.refusals, f"{told}; {hint}"))
    missed = out_of_reach(worker, plan.candidate.service) if plan.candidate else ""
    if missed:
        told = f"the router cannot reach this service at {worker.url}: {missed}"
        hint = "`ddtreectl deploy` gives it the address and settings that the inventory has"
        return replace(plan, refusals=(*plan.refusals, f"{told}; {hint}"))
    if router.state == "absent":
        note = f"no router runs on `{settings.host}` yet: `ddtreectl router deploy`"
        return replace(plan, notes=(*plan.notes, note))
    out = _out(plan, worker, router, settings)
    into = _into(plan, worker, router)
    first = next((i for i, s in enumerate(plan.steps) if s.action in _TOUCHES), len(plan.steps))
    steps = (*plan.steps[:first], *out, *plan.steps[first:], *into)
    return replace(plan, steps=steps, notes=(*plan.notes, *_notes(worker, router, steps)))


def _out(
    plan: Plan, worker: Worker, router: RouterFacts, settings: RouterSettings
) -> tuple[Step, ...]:
    """The steps that free a worker of requests; none where nothing that serves is touched."""
    touching = next((step for step in plan.steps if step.action in _TOUCHES), None)
    if router.state == "unreachable" or not router.serves(worker.name):
        return ()
    if touching is None and (plan.candidate is not None or plan.refusals):
        return ()
    phase = touching.phase if touching else Phase.PREPARE
    take_out = Step(
        Action.TAKE_OUT,
        f"take {worker.name} out of the router",
        "no new request meets a service that stops",
        phase,
        alone=router.state != "up" or standby.alone(router, worker.name),
    )
    if touching is None or router.state != "up":
        return (take_out,)
    limit = f"at most {settings.drain_timeout} s"
    idle = Step(
        Action.AWAIT_IDLE,
        f"wait for its running requests, {limit}",
        "what was begun is finished",
        phase,
    )
    return (take_out, idle)


def _into(plan: Plan, worker: Worker, router: RouterFacts) -> tuple[Step, ...]:
    """The step that gives a worker requests, unless it has them and keeps them."""
    if plan.candidate is None or plan.refusals:
        return ()
    has = router.listed is not None and router.listed.get(worker.name) == worker.url
    if plan.empty and (has or router.state == "unreachable"):
        return ()
    put_in = Step(
        Action.PUT_IN,
        f"put {worker.name} into the router",
        "it has passed its checks" if not plan.empty else "it serves, and the router has it not",
        Phase.CONFIRM if not plan.empty else Phase.PREPARE,
    )
    return (put_in,)


def _notes(worker: Worker, router: RouterFacts, steps: tuple[Step, ...]) -> Iterator[str]:
    if not steps:
        return
    if router.state == "unreachable":
        yield (
            f"the router cannot be reached ({router.problem}): its clients may see errors while "
            f"the service is down; afterwards, {SYNC}"
        )
    elif router.state == "down":
        yield (
            f"the router is down ({router.problem}): its list of workers is kept right, and it "
            "goes by it when it starts"
        )
        return
    taken = next((step for step in steps if step.action is Action.TAKE_OUT), None)
    entry = router.worker(worker.name)
    if taken is None:
        return
    if taken.alone or (entry is None and not router.workers):
        yield (
            "it is the only worker of the router that is ready: clients get errors until the new "
            "service is in"
        )
    elif entry is not None and not standby.replaced(router, entry):
        names = ", ".join(standby.coming(router, entry))
        yield f"it is left in the router until {names} is back, which is swapped just now"
