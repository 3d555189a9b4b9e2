"""Deploy, swap and roll back on a real systemd over real SSH; and what ends a swap in the middle.

The tests share hosts and hand them on as they found them: generation 1, mode tree, serves.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fleet import engine_wheel
from tests.fleet.deployer import (
    NEVER_READY,
    REVERT,
    REVERT_AFTER,
    ROOT,
    SWAP,
    Deployer,
    read_until,
    serving_hosts,
)
from tests.fleet.lab.gpu import Holder
from tests.fleet.lab.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Deployer]]:
    """Three hosts that serve, each with an operator of its own."""
    with serving_hosts(tmp_path_factory, 3, revert_after=REVERT_AFTER) as operators:
        yield operators


@pytest.fixture
def operators(deployers: list[Deployer]) -> Iterator[list[Deployer]]:
    yield deployers
    for operator in deployers:
        if not operator.host.hurt:
            continue
        operator.host.heal()
        if operator.facts() != (1, "tree", "healthy"):  # a test has failed; the next is not to
            operator.run("rollback", operator.name, "--to", "1")


@pytest.fixture
def operator(operators: list[Deployer]) -> Deployer:
    operators[0].host.hurt = True
    return operators[0]


def test_deployed_on_real_systemd(operator: Deployer) -> None:
    operator.assert_as_found()
    status = json.loads(operator.run("status", "--json").stdout)
    (host,) = status["hosts"]
    assert (host["supervisor"], host["restarts_services"]) == ("systemd", True)
    (environment,) = (operator.host.root / ROOT / "environments").glob("engine-*/environment.json")
    fingerprint = json.loads(environment.read_text())["fingerprint"]
    assert fingerprint["packages"]["ddtree-engine"] == engine_wheel.VERSION
    assert "ready: mode=tree" in operator.run("logs", "h1").stdout
    again = operator.deploy("tree")
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)
    assert operator.host.says("ls -A /var/lib/ddtree/slots/gpu0") == "generations\nrevert.sh"


def test_swap_and_roll_back(operator: Deployer) -> None:
    before = operator.engines()
    healthy = operator.host.healthy_gpus
    uuid = healthy.gpus[0].uuid
    operator.host.set_gpus(replace(healthy, holders=(Holder(uuid, "ddtree-gpu0-*", 40_000),)))
    swapped = operator.deploy("linear")
    assert swapped.returncode == 0, swapped.stderr
    assert f"GPU 0 ({uuid}): 40004 MiB before, 4 MiB now" in swapped.stderr
    generation, mode, health = operator.facts()
    assert (mode, health) == ("linear", "healthy")
    assert generation != 1
    assert "✓ disarm the dead-man revert" in swapped.stderr
    back = operator.run("rollback", "h1")
    assert back.returncode == 0, back.stderr
    operator.assert_as_found()
    assert operator.engines() != before


def test_a_service_that_fails_is_seen_and_the_old_one_serves_again(operator: Deployer) -> None:
    operator.host.says(
        "mkdir -p /srv/exits && cd /srv/exits && echo '{}' >config.json && echo exit >faults"
    )
    failed = operator.deploy("linear", "--model", "/srv/exits", "--drafter", "/srv/exits")
    assert failed.returncode == 6, failed.stderr
    assert "generation 1 serves again" in failed.stderr
    assert "error: the model does not fit" in failed.stderr.partition("journal of this run")[2]
    operator.assert_as_found()


def test_two_operators_at_once(operator: Deployer) -> None:
    first = operator.begin_until("✓ start", "--mode", "linear", *NEVER_READY)
    second = operator.deploy("shadow")
    assert second.returncode == 5
    assert f"pid {first.pid}" in second.stderr
    first.terminate()
    _, said = first.communicate(timeout=60)
    assert first.returncode == 6, said
    operator.assert_as_found()


@pytest.mark.parametrize(
    ("program", "match", "code"),
    [
        ("systemd-analyze", "verify", 4),
        ("systemctl", "stop ddtree-gpu0-tree", 6),
        ("systemctl", "start --no-block", 6),
    ],
)
def test_a_connection_that_is_reset_in_the_middle_of_a_step(
    operator: Deployer, program: str, match: str, code: int
) -> None:
    with operator.host.hold(program, match) as hold:
        process = operator.begin("deploy", "h1", "--mode", "linear")
        hold.reached()
        operator.host.reset_connections()
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "was lost while" in said
    operator.assert_as_found()


def test_hosts_return_by_themselves_when_their_operators_are_lost(
    operators: list[Deployer],
) -> None:
    """One operator is killed, one is cut off, and one is lost together with the host's power.

    Where the new generation has the unit of the old one, the file of it was overwritten.
    """
    killed, cut_off, powerless = operators
    swaps = [
        operator.begin("deploy", operator.name, "--mode", mode, *NEVER_READY)
        for operator, mode in zip(operators, ("tree", "linear", "tree"), strict=True)
    ]
    for process in swaps:
        read_until("✓ start", process)
    assert [o.reverting() for o in operators] == [True] * 3
    root = cut_off.host.root
    for operator, process in ((killed, swaps[0]), (powerless, swaps[2])):
        operator.host.hurt = True
        process.kill()
        process.wait()
    cut_off.host.cut()
    powerless.host.kill()
    powerless.host.start()
    assert powerless.reverting()
    assert killed.facts()[0] != 1
    assert killed.run("status").returncode == 1

    _, said = swaps[1].communicate(timeout=90)
    assert swaps[1].returncode == 4, said
    assert f"{REVERT_AFTER} s after it has last heard of this command" in said
    for folder in (killed.host.root, root, powerless.host.root):
        swap, timer = folder / SWAP, folder / REVERT
        until(
            lambda swap=swap, timer=timer: not swap.exists() and not timer.exists(),
            f"{folder} has returned",
            deadline=REVERT_AFTER + 40,
        )
    cut_off.host.heal()
    for operator in operators:
        operator.assert_as_found()
        audit = (operator.host.root / ROOT / "audit.jsonl").read_text().splitlines()
        assert any(json.loads(line)["event"] == "reverted" for line in audit)
    assert killed.deploy("tree").returncode == 0  # which finds no lock


def test_an_operator_who_is_quicker_than_the_revert(operator: Deployer) -> None:
    process = operator.begin_until("✓ start", "--mode", "tree", *NEVER_READY)
    process.kill()
    process.wait()
    done = operator.run("rollback", "h1")
    assert done.returncode == 0, done.stderr
    assert "setting it right" in done.stderr
    operator.assert_as_found()


def test_a_reboot_starts_what_served(operator: Deployer) -> None:
    operator.host.reboot()
    until(lambda: operator.facts() == (1, "tree", "healthy"), "it serves again")
    operator.assert_as_found()


def test_a_gpu_that_wants_a_reset_is_drained_and_serves_again(operator: Deployer) -> None:
    pci = operator.host.healthy_gpus.gpus[0].pci[4:-2].lower()
    operator.host.log(f"NVRM: Xid (PCI:{pci}): 95, pid=1, name=python3, Uncontained: LTC TAG")
    drained = operator.run("drain", "h1:0", "--reason", "Xid 95")
    assert drained.returncode == 0, drained.stderr
    assert "h1:0: cordoned (Xid 95)" in drained.stdout
    assert "h1/gpu0: stopped" in drained.stdout
    assert operator.engines() == []
    assert operator.facts() == (1, "tree", "stopped")
    refused = operator.run("rollback", "h1", "--to", "1")
    assert refused.returncode == 1
    assert "GPU 0 is cordoned: Xid 95" in refused.stderr
    assert "GPU 0: Xid 95: " in refused.stderr
    assert operator.run("uncordon", "h1:0").returncode == 0
    done = operator.run("rollback", "h1", "--to", "1")
    assert done.returncode == 0, done.stderr
    operator.assert_as_found()
