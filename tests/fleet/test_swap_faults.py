"""Every fault at every step of a swap: afterwards the old service serves, or the new one.

The steps are those of the plan, so that a step that is added is hurt as well. A fault strikes when
the first command of a step is about to run. By default each step and each fault occurs at least
once; FULL=1 has every pair, and ROTATION=N other pairs.

Steps of a build are hurt in a deploy of an engine that the host has no environment for; those of
the router in one by an operator who has a router, which runs on a host of its own.
"""

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddtreectl.plan.step import Action, Phase
from tests.fleet import engine_wheel, swap_steps
from tests.fleet.behind_router import BehindRouter
from tests.fleet.deployer import ROOT, Deployer, serving_hosts
from tests.fleet.lab.hold import Hold
from tests.fleet.lab.shell import LabError
from tests.fleet.lab.topology import HostSpec
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator
from tests.fleet.strike import ENDS_WITHIN, FAULTS, SETTLES_WITHIN, Strike
from tests.fleet.swap_steps import AT_THE_ROUTER, PLANNED, ROUTED, STEPS, phase

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HOSTS = 5
ROUTER = "router"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - so that the router reaches it
REVERT_AFTER = 6
COMMANDS_END_WITHIN = 90.0
LOST = {4, 5}
"""Exit codes of operators who do not know what became of the host."""


def selected() -> Iterator[tuple[str, str]]:
    """The pairs to try: all of them, or a diagonal."""
    names, shift = list(FAULTS), int(os.environ.get("ROTATION", "0"))
    for number, step in enumerate(STEPS):
        for place, fault in enumerate(names):
            if os.environ.get("FULL") == "1" or place == (number + shift) % len(names):
                yield step, fault


Case = tuple[str, str]


@dataclass
class Lab:
    """Hosts that serve, each with an operator of its own.

    Attributes:
        operators: of the hosts.
        routed: the operator of all hosts behind a router; None where no case needs one.
    """

    operators: list[Deployer]
    routed: BehindRouter | None = None
    _at_the_router: threading.Lock = field(default_factory=threading.Lock)

    def add_router(self, folder: Path, wheels: Path) -> None:
        """Put a router before the hosts."""
        names = [operator.name for operator in self.operators]
        fleet = self.operators[0].fleet
        self.routed = BehindRouter(fleet, folder, names, ROUTER, revert_after=REVERT_AFTER)
        done = self.routed.run("router", "deploy", "--wheelhouse", str(wheels))
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def held(self, operator: Deployer, step: str, begin: Callable[[], None]) -> Iterator[Hold]:
        """Begin a swap, and hold it where the first command of a step is about to run.

        On the router's host one is held at a time, for all swaps change the same list.
        """
        change = AT_THE_ROUTER.get(STEPS[step])
        with contextlib.ExitStack() as until_reached, contextlib.ExitStack() as until_done:
            if change is None or self.routed is None:
                hold = operator.host.hold("env", f"lock.json {step} ")
            else:
                until_reached.enter_context(self._at_the_router)
                hold = self.routed.hold_list(change, operator.name)
            until_done.enter_context(hold)
            begin()
            hold.reached(ENDS_WITHIN)
            until_reached.close()
            yield hold


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    router = HostSpec(ROUTER, gpus=0, disk="4G")
    with serving_hosts(
        tmp_path_factory, HOSTS, revert_after=REVERT_AFTER, listens=EVERYWHERE, more=[router]
    ) as operators:
        found = Lab(operators)
        yield found
        if found.routed is not None:
            found.routed.close()


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, "Future[None]"]]:
    """All cases that were asked for, on as many hosts at a time as there are."""
    wanted: list[Case] = [
        (str(item.callspec.params["step"]), str(item.callspec.params["fault"]))
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
    ]
    wanted.sort(key=lambda case: STEPS[case[0]] not in ROUTED)  # these take longest
    unavailable = ""
    if any(STEPS[step] in ROUTED for step, _ in wanted):
        try:
            wheels = request.getfixturevalue("router_wheelhouse")
        except pytest.skip.Exception as skipped:
            unavailable = str(skipped)
        else:
            lab.add_router(tmp_path_factory.mktemp("routed"), wheels)
    free: queue.SimpleQueue[Deployer] = queue.SimpleQueue()
    for operator in lab.operators:
        free.put(operator)

    def one(case: Case) -> None:
        if unavailable and STEPS[case[0]] in ROUTED:
            pytest.skip(unavailable)
        operator = free.get()
        try:
            strike(lab, operator, *case)
        finally:
            free.put(operator)

    pool = ThreadPoolExecutor(max_workers=len(lab.operators))
    yield {case: pool.submit(one, case) for case in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("step", "fault"), list(selected()))
def test_one_service_serves_afterwards(
    cases: dict[Case, "Future[None]"], step: str, fault: str
) -> None:
    cases[step, fault].result()


def test_the_plan_that_is_hurt_is_the_plan_that_is_applied(
    lab: Lab, router_wheelhouse: Path, tmp_path: Path
) -> None:
    if lab.routed is None:
        lab.add_router(tmp_path, router_wheelhouse)
    assert lab.routed is not None
    lab.routed.await_ready("h1")
    with new_engine(lab.routed, tmp_path):
        shown = lab.routed.run("deploy", "h1", "--mode", "shadow", "--force", "--dry-run", "--json")
    steps = json.loads(shown.stdout)["plan"]["steps"]
    assert [step["action"] for step in steps] == list(PLANNED)
    with new_engine(lab.operators[0], tmp_path):
        shown = lab.operators[0].run("provision", "h1", "--dry-run", "--json")
    steps = json.loads(shown.stdout)["plan"]["steps"]
    assert [step["action"] for step in steps] == list(swap_steps.BUILD)


@contextlib.contextmanager
def new_engine(operator: Operator, folder: Path) -> Iterator[None]:
    """Have an operator deploy an engine that no host has an environment for."""
    usual = operator.env["DDTREECTL_ENGINE_WHEEL"]
    folder.mkdir(exist_ok=True)
    operator.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder, edition=folder.name))
    try:
        yield
    finally:
        operator.env["DDTREECTL_ENGINE_WHEEL"] = usual


def strike(lab: Lab, operator: Deployer, step: str, fault: str) -> None:
    """Hurt one swap, and see what is left of it."""
    action, worker = STEPS[step], f"{operator.name}/gpu0"
    routed = lab.routed if action in ROUTED else None
    if routed is not None and routed.workers().get(worker) != "ready":
        put_in(routed, operator)
    before = operator.service()
    assert before["health"] == "healthy", before
    mode = {"tree": "linear", "linear": "shadow", "shadow": "tree"}[str(before["mode"])]
    started: list[subprocess.Popen[str]] = []

    def begin() -> None:
        by = routed or operator
        started.append(by.begin("deploy", operator.name, "--mode", mode))

    try:
        with contextlib.ExitStack() as until_hurt:
            if action is Action.BUILD_ENVIRONMENT:
                folder = operator.inventory.parent / f"{step}-{fault}"
                until_hurt.enter_context(new_engine(operator, folder))
            try:
                hold = until_hurt.enter_context(lab.held(operator, step, begin))
            except LabError:
                started[0].kill()
                _, said = started[0].communicate()
                raise AssertionError(f"the step is not reached:\n{said}") from None
            hurt = Strike(operator, started[0], hold)
            FAULTS[fault](hurt)
    finally:
        operator.host.heal()
    until(lambda: not operator.reverting(), "the host has returned, if it had to", SETTLES_WITHIN)
    found = until(lambda: healthy(operator), "a service serves", SETTLES_WITHIN, pause=0.5)
    code = started[0].returncode
    if code == 0:
        assert (found["mode"], found["generation_status"]) == (mode, "good")
    elif code == 6 or (code > 0 and phase(step) is Phase.PREPARE):
        assert found["generation"] == before["generation"]
    else:
        assert found["mode"] in {mode, before["mode"]}
    assert len(operator.engines()) == 1
    # Where the host has not seen its operator go, a command ends at its own deadline.
    until(lambda: leftovers(operator) == [], "no command is left", COMMANDS_END_WITHIN, pause=0.5)
    if operator.swapping():  # its operator was lost while the host could do nothing about it
        settled = (routed or operator).run("rollback", operator.name, "--lock-wait", "30")
        assert settled.returncode == 0, settled.stderr
    assert not operator.reverting()
    assert not operator.swapping()
    if action is Action.BUILD_ENVIRONMENT:
        assert unusable(operator) == []
    if routed is not None:
        if code in LOST and action is not Action.PUT_IN:
            assert "`ddtreectl router sync` puts in what serves" in hurt.said
        if code < 0 or code in LOST:  # the next contact puts it in, and touches nothing else
            generation = operator.service()["generation"]
            put_in(routed, operator)
            assert operator.service()["generation"] == generation
        routed.await_ready(operator.name)


def put_in(routed: BehindRouter, operator: Deployer) -> None:
    """Have the router know of the service of a host, by a deploy of what it serves already."""
    mode = str(operator.service()["mode"])
    done = routed.run("deploy", operator.name, "--mode", mode, "--lock-wait", "90")
    assert done.returncode == 0, done.stderr
    routed.await_ready(operator.name)


def unusable(operator: Deployer) -> list[str]:
    """Environments on the host that look finished, and which the engine does not run from."""
    script = (
        f"for f in /{ROOT}/environments/*/environment.json; do "
        'd=${f%/*}; "$d/bin/ddtree-engine" inspect --json >/dev/null 2>&1 || echo "$d"; done'
    )
    return operator.host.says(script).splitlines()


def healthy(operator: Deployer) -> dict[str, object]:
    """The service of the slot, once it serves and nobody works on it any more."""
    found = operator.service()
    return found if found.get("health") == "healthy" else {}


def leftovers(operator: Deployer) -> list[str]:
    """Commands of operators that still run on the host."""
    found = []
    for folder in (operator.host.root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"DDTREECTL_LOCK=" in (Path(folder) / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found
