"""Each step of a migration, hurt in each way: nothing is lost, nothing serves twice, it goes on.

By default each fault hurts one step, and ROTATION=N chooses others; FULL=1 has every pair.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from ddtreectl.plan.migration import MoveAction, steps
from tests.ctl.test_placement import moving
from tests.fleet.lab.waiting import until
from tests.fleet.night import UNCONTAINED, Night, booted, engines

pytestmark = pytest.mark.slow

MODEL = "/srv/models/m"
WORDS = {
    step.action: step.title.split()[0]
    for step in steps([moving(built=False, copied=1)], cordons=["ct129:1"])
}
"""The first word of each step of a migration, as it is said when the step begins."""

FAULTS: dict[str, Callable[[Night], None]] = {
    "operator-killed": lambda _: None,
    "source-cut": lambda night: night.source.cut(),
    "target-cut": lambda night: night.target.cut(),
    "target-without-power": lambda night: night.target.kill(),
    "target-full": lambda night: night.target.fill(0),
}
CASES = [
    pytest.param(fault, action, id=f"{fault}-{action}")
    for number, fault in enumerate(FAULTS)
    for place, action in enumerate(WORDS)
    if os.environ.get("FULL") == "1"
    or place == (2 * number + 4 + int(os.environ.get("ROTATION", "0"))) % len(WORDS)
]


@pytest.fixture(scope="module")
def whole_night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    with booted(tmp_path_factory.mktemp("night")) as night:
        for host in night.hosts:
            host.says(f"mkdir -p {MODEL} && echo '{{}}' >{MODEL}/config.json")
        night.hosts[0].says(f"head -c 20M /dev/urandom >{MODEL}/model.safetensors")
        words = ("--mode", "tree", "--budget", "16", "--model", MODEL, "--drafter", MODEL)
        done = night.run("deploy", "ct129", *words)
        assert done.returncode == 0, done.stderr
        yield night


@pytest.fixture
def night(whole_night: Night) -> Iterator[Night]:
    yield whole_night
    whole_night.settle()


@pytest.mark.parametrize(("fault", "action"), CASES)
def test_a_step_is_hurt(night: Night, fault: str, action: MoveAction) -> None:
    source, target = night.source, night.target
    if action is MoveAction.PROVISION:
        target.says("rm -rf /var/lib/ddtree/environments /var/lib/ddtree/provisioned.json")
    if action is MoveAction.COPY_WEIGHTS:
        target.says(f"rm -rf {MODEL}")
    source.log(UNCONTAINED)
    process = night.begin("migrate", source.name, "--yes")
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(f"{WORDS[action]} "):
            break
    else:
        pytest.fail(f"{action} was not reached: {said}")
    if fault == "operator-killed":
        process.kill()
        process.communicate()
    else:
        FAULTS[fault](night)
        _, rest = process.communicate(timeout=240)
        assert process.returncode in {0, 1, 3, 4, 6}, rest
        assert "Traceback" not in rest
    for host in night.hosts:
        host.heal()
    until(night.serving, "one of them serves", deadline=60)
    again = night.migrate()
    assert again.returncode == 0, again.stdout + again.stderr
    assert night.moved()
    assert not engines(source)
