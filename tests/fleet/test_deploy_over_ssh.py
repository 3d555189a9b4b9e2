"""Deploy, swap and roll back on a real systemd over real SSH; and what ends a swap in the middle.

The tests share hosts and hand them on as they found them: generation 1, mode tree, serves.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet import engine_wheel
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator

pytestmark = pytest.mark.slow

REVERT_AFTER = 20
ROOT = Path("var/lib/ddtree")
SWAP = ROOT / "slots/gpu0/swap.json"
REVERT = Path("etc/systemd/system/ddtree-revert-gpu0.timer")
NEVER_READY = ["--model", "/srv/never-ready", "--drafter", "/srv/never-ready"]


class Deployer(Operator):
    """An operator of one host with one slot, who deploys the stand-in engine."""

    def __init__(self, fleet: Fleet, folder: Path, name: str) -> None:
        super().__init__(fleet, folder)
        self.name = name
        self.host = fleet.hosts[name]
        self.write(
            hosts=f"""hosts:
  {name}:
    address: {self.host.address}
    revert_after: {REVERT_AFTER}
    slots:
      gpu0: {{gpus: [0], port: 30000, service: {{start_timeout: 60, stop_timeout: 2}}}}
"""
        )
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder))
        self.set_option("ConnectTimeout", "2")
        self.set_option("ServerAliveInterval", "1")

    def deploy(self, mode: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("deploy", self.name, "--mode", mode, *words)

    def begin_until(self, said: str, *words: str) -> "subprocess.Popen[str]":
        """Begin a deploy, and return when it has reported a line with `said`."""
        return read_until(said, self.begin("deploy", self.name, *words))

    def service(self) -> dict[str, object]:
        """What status tells of the slot, or nothing while it has no service."""
        services = json.loads(self.run("status", "--json").stdout)["services"]
        return dict(services[0]) if services else {}

    def facts(self) -> tuple[object, ...]:
        service = self.service()
        return tuple(service.get(key) for key in ("generation", "mode", "health"))

    def reverting(self) -> bool:
        """Whether a dead-man revert is armed on the host."""
        return (self.host.root / REVERT).exists()

    def swapping(self) -> bool:
        return (self.host.root / SWAP).exists()

    def engines(self) -> list[str]:
        """The processes of services on the host."""
        return self.host.says("pgrep -af 'ddtree-engine [s]erve' || true").splitlines()

    def assert_as_found(self) -> None:
        assert self.facts() == (1, "tree", "healthy")
        assert len(self.engines()) == 1
        assert not self.reverting()
        assert not self.swapping()
        enabled = self.host.says("systemctl list-unit-files --state=enabled 'ddtree-*' --no-legend")
        assert [line.split()[0] for line in enabled.splitlines()] == ["ddtree-gpu0-tree.service"]


def read_until(said: str, process: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
    """Read what a deploy reports until a line has `said`."""
    assert process.stderr is not None
    for line in process.stderr:
        if said in line:
            return process
    raise AssertionError(f"the deploy ended before it said {said!r}")


@pytest.fixture(scope="module")
def deployers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Deployer]]:
    """Three hosts that serve, each with an operator of its own."""
    names = ("h1", "h2", "h3")
    with Fleet.boot([HostSpec(name, gpus=1, disk="16G") for name in names]) as fleet:
        operators = [Deployer(fleet, tmp_path_factory.mktemp(name), name) for name in names]
        first = [o.begin("deploy", o.name, "--mode", "tree") for o in operators]
        for operator, process in zip(operators, first, strict=True):
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, said
            operator.host.says(
                "mkdir /srv/never-ready && cd /srv/never-ready && "
                "echo '{}' >config.json && echo never-ready >faults"
            )
        yield operators
        for operator in operators:
            operator.close()


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
    swapped = operator.deploy("linear")
    assert swapped.returncode == 0, swapped.stderr
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
