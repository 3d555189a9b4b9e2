"""The steps of a swap as its plan has them, for tests that hurt each of them.

The plan is that of a deploy whose environment is not on the host yet, behind a router: every step
that there is. A build is several steps, each of which can be hurt.
"""

from dataclasses import replace

from ddtreectl.apply.environments import BuildAction
from ddtreectl.facts.router import RouterFacts, RouterWorker
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.inventory.service import Mode
from ddtreectl.inventory.workers import Worker
from ddtreectl.plan.routed import routed
from ddtreectl.plan.step import Action, Phase
from ddtreectl.plan.swap import plan_swap
from tests.ctl.test_plan import SERVING, wish

_WORKER = Worker("gpuhost/gpu1", "http://127.0.0.1:30001")
_ROUTER = RouterFacts(
    "up",
    listed={_WORKER.name: _WORKER.url},
    workers=(RouterWorker(_WORKER.name, frozenset(), _WORKER.url, "ready", 0),),
)
_SETTINGS = RouterSettings(host="gpuhost", address="10.1.2.200", port=8000)
_EMPTY = replace(SERVING, records=replace(SERVING.records, environments=frozenset()))

PLANNED = {
    step.action: step.phase
    for step in routed(plan_swap(wish(Mode.LINEAR), _EMPTY), _WORKER, _ROUTER, _SETTINGS).steps
}
"""The steps of the plan in order, and what a failure in each means."""

BUILD = tuple(
    action
    for action in BuildAction
    if action not in {BuildAction.HAVE_UV, BuildAction.BRING_WHEELS}  # from a wheelhouse alone
)
"""The steps of a build on a host that installs packages itself."""

AT_THE_ROUTER = {Action.TAKE_OUT: "remove", Action.PUT_IN: "add"}
"""Steps whose commands run on the router's host, and what they do to its list."""

ROUTED = {*AT_THE_ROUTER, Action.AWAIT_IDLE}


def _named() -> dict[str, Action]:
    found: dict[str, Action] = {}
    for action in PLANNED:
        if action is Action.BUILD_ENVIRONMENT:
            found |= {f"{action}:{part}": action for part in BUILD}
        else:
            found[str(action)] = action
    return found


STEPS = _named()
"""Each step by the name that its commands carry on a host."""


def phase(step: str) -> Phase:
    """What a failure in a step means."""
    return PLANNED[STEPS[step]]
