"""Every fault at every step of a swap: afterwards the old service serves, or the new one.

The steps are those of the plan, so that a step that is added is hurt as well. A fault strikes when
the first command of a step is about to run. By default each step and each fault occurs at least
once; FULL=1 has every pair, and ROTATION=N other pairs.
"""

import contextlib
import json
import os
import queue
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ddtreectl.inventory.service import Mode
from ddtreectl.plan.step import Phase
from ddtreectl.plan.swap import plan_swap
from tests.ctl.test_plan import SERVING, wish
from tests.fleet.deployer import Deployer, serving_hosts
from tests.fleet.lab.hold import Hold
from tests.fleet.lab.shell import LabError
from tests.fleet.lab.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HOSTS = 4
REVERT_AFTER = 6
ENDS_WITHIN = 120.0
SETTLES_WITHIN = 60.0
COMMANDS_END_WITHIN = 90.0
PHASES = {step.action.value: step.phase for step in plan_swap(wish(Mode.LINEAR), SERVING).steps}


class Strike:
    """A deploy whose step is held, to be hurt."""

    def __init__(self, operator: Deployer, process: "subprocess.Popen[str]", hold: Hold) -> None:
        self.operator = operator
        self.host = operator.host
        self.process = process
        self.hold = hold

    def end(self) -> None:
        """Let the step go on, and wait for the end of the deploy."""
        self.hold.release()
        self.process.communicate(timeout=ENDS_WITHIN)

    def cut(self) -> None:
        self.host.cut()
        self.end()
        if self.operator.reverting():
            until(lambda: not self.operator.reverting(), "it returns alone", SETTLES_WITHIN)

    def slow(self) -> None:
        self.host.slow(delay=0.08, jitter=0.03, loss=0.02)
        self.end()

    def power(self) -> None:
        self.host.kill()
        self.host.start()
        self.end()

    def reboot(self) -> None:
        self.host.reboot()
        self.end()

    def full(self) -> None:
        self.host.fill(16)
        self.end()

    def hang(self) -> None:
        """The command hangs until its operator has enough of it and stops the deploy."""
        self.process.terminate()
        self.process.communicate(timeout=ENDS_WITHIN)

    def reset(self) -> None:
        self.host.reset_connections()
        self.end()

    def killed(self) -> None:
        """The operator's process ends at once; what was held comes late."""
        self.process.kill()
        self.process.communicate()
        self.hold.release()


FAULTS: dict[str, Callable[[Strike], None]] = {
    "cut": Strike.cut,
    "slow": Strike.slow,
    "power": Strike.power,
    "reboot": Strike.reboot,
    "full": Strike.full,
    "hang": Strike.hang,
    "reset": Strike.reset,
    "killed": Strike.killed,
}


def selected() -> Iterator[tuple[str, str]]:
    """The pairs to try: all of them, or a diagonal."""
    names, shift = list(FAULTS), int(os.environ.get("ROTATION", "0"))
    for number, action in enumerate(PHASES):
        for place, fault in enumerate(names):
            if os.environ.get("FULL") == "1" or place == (number + shift) % len(names):
                yield action, fault


Case = tuple[str, str]


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Deployer]]:
    with serving_hosts(tmp_path_factory, HOSTS, revert_after=REVERT_AFTER) as found:
        yield found


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest, operators: list[Deployer]
) -> Iterator[dict[Case, "Future[None]"]]:
    """All cases that were asked for, on as many hosts at a time as there are."""
    free: queue.SimpleQueue[Deployer] = queue.SimpleQueue()
    for operator in operators:
        free.put(operator)

    def one(case: Case) -> None:
        operator = free.get()
        try:
            strike(operator, *case)
        finally:
            free.put(operator)

    wanted = [
        (item.callspec.params["action"], item.callspec.params["fault"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
    ]
    pool = ThreadPoolExecutor(max_workers=len(operators))
    yield {case: pool.submit(one, case) for case in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("action", "fault"), list(selected()))
def test_one_service_serves_afterwards(
    cases: dict[Case, "Future[None]"], action: str, fault: str
) -> None:
    cases[action, fault].result()


def test_the_plan_that_is_hurt_is_the_plan_that_is_applied(operators: list[Deployer]) -> None:
    operator = operators[0]
    shown = operator.deploy("shadow", "--force", "--dry-run", "--json")
    steps = json.loads(shown.stdout)["plan"]["steps"]
    assert [step["action"] for step in steps] == list(PHASES)


def strike(operator: Deployer, action: str, fault: str) -> None:
    """Hurt one swap, and see what is left of it."""
    before = operator.service()
    assert before["health"] == "healthy", before
    mode = {"tree": "linear", "linear": "shadow", "shadow": "tree"}[str(before["mode"])]
    hold = operator.host.hold("env", f"lock.json {action} ")
    try:
        process = operator.begin("deploy", operator.name, "--mode", mode)
        try:
            hold.reached(ENDS_WITHIN)
        except LabError:
            process.kill()
            _, said = process.communicate()
            raise AssertionError(f"the step is not reached:\n{said}") from None
        FAULTS[fault](Strike(operator, process, hold))
    finally:
        operator.host.heal()
    until(lambda: not operator.reverting(), "the host has returned, if it had to", SETTLES_WITHIN)
    found = until(lambda: healthy(operator), "a service serves", SETTLES_WITHIN, pause=0.5)
    code = process.returncode
    if code == 0:
        assert (found["mode"], found["generation_status"]) == (mode, "good")
    elif code == 6 or (code > 0 and PHASES[action] is Phase.PREPARE):
        assert found["generation"] == before["generation"]
    else:
        assert found["mode"] in {mode, before["mode"]}
    assert len(operator.engines()) == 1
    # Where the host has not seen its operator go, a command ends at its own deadline.
    until(lambda: leftovers(operator) == [], "no command is left", COMMANDS_END_WITHIN, pause=0.5)
    if operator.swapping():  # its operator was lost while the host could do nothing about it
        settled = operator.run("rollback", operator.name, "--lock-wait", "30")
        assert settled.returncode == 0, settled.stderr
    assert not operator.reverting()
    assert not operator.swapping()


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
