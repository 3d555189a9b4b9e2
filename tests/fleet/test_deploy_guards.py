"""What a deploy on real hosts refuses, waits for, keeps secret and rolls out.

The tests share hosts and hand them on as they found them: generation 1, mode tree, serves.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fleet.deployer import NEVER_READY, Deployer, serving_hosts
from tests.fleet.lab.gpu import Holder, Process
from tests.fleet.lab.waiting import until

pytestmark = pytest.mark.slow

UNITS = "ddtree-gpu0-*"


@pytest.fixture(scope="module")
def deployers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Deployer]]:
    with serving_hosts(tmp_path_factory, 3, revert_after=8) as operators:
        yield operators


@pytest.fixture
def operators(deployers: list[Deployer]) -> Iterator[list[Deployer]]:
    yield deployers
    for operator in deployers:
        if operator.host.hurt:
            operator.host.heal()
            operator.write_hosts([operator.host.address])
            if operator.facts() != (1, "tree", "healthy"):
                operator.run("rollback", operator.name, "--to", "1", "--lock-wait", "30")


@pytest.fixture
def operator(operators: list[Deployer]) -> Deployer:
    operators[0].host.hurt = True
    return operators[0]


# ---- GPUs ----


def test_memory_that_is_not_given_back_ends_the_swap(operator: Deployer) -> None:
    healthy = operator.host.healthy_gpus
    uuid = healthy.gpus[0].uuid
    loaded = replace(healthy, holders=(Holder(uuid, UNITS, 40_000),))
    operator.host.set_gpus(loaded)
    with operator.host.hold("systemctl", "stop ddtree-gpu0-tree") as hold:
        process = operator.begin("deploy", "h1", "--mode", "linear")
        hold.reached()
        operator.host.set_gpus(replace(healthy.with_gpu(0, memory_used=30_004)))
        hold.release()
        _, said = process.communicate(timeout=90)
    assert process.returncode == 6, said
    assert f"the memory of GPU 0 ({uuid}) on `h1` is not given back: 30004 MiB in use" in said
    operator.assert_as_found()


def test_a_foreign_process_on_the_gpu_is_named_and_left_alone(operator: Deployer) -> None:
    healthy = operator.host.healthy_gpus
    pid = int(operator.host.says("systemctl show -P MainPID ssh"))
    foreign = Process(healthy.gpus[0].uuid, pid, 1234, "sshd")
    operator.host.set_gpus(replace(healthy, processes=(foreign,)))
    refused = operator.deploy("linear")
    assert refused.returncode == 1
    assert f"GPU 0 is used (1234 MiB) by pid {pid} (user root, unit ssh.service)" in refused.stderr
    assert "which is not ours to stop" in refused.stderr
    assert int(operator.host.says("systemctl show -P MainPID ssh")) == pid
    operator.assert_as_found()


def test_another_card_under_the_index_is_refused(operator: Deployer) -> None:
    healthy = operator.host.healthy_gpus
    other = "GPU-99999999-9999-9999-9999-999999999999"
    operator.host.set_gpus(healthy.with_gpu(0, uuid=other))
    refused = operator.deploy("linear")
    assert refused.returncode == 1
    assert f"was bound to {healthy.gpus[0].uuid}, and its GPU is {other} now" in refused.stderr
    accepted = operator.deploy("linear", "--new-gpu", "--dry-run")
    assert accepted.returncode == 0, accepted.stdout
    operator.host.set_gpus(healthy)
    operator.assert_as_found()


# ---- secrets ----


def test_an_api_key_reaches_the_service_and_nobody_else(operator: Deployer) -> None:
    host, key = operator.host, "s3cr3t-of-the-service"
    operator.write_hosts([host.address], api_key="/etc/ddtree/key")
    absent = operator.deploy("linear")
    assert "the file with the API keys, `/etc/ddtree/key`, is not there" in absent.stderr
    host.says(f"mkdir -p /etc/ddtree && echo {key} >/etc/ddtree/key && chmod 644 /etc/ddtree/key")
    open_to_all = operator.deploy("linear")
    assert "be readable by root alone" in open_to_all.stderr
    host.says("chmod 600 /etc/ddtree/key")
    done = operator.deploy("linear")
    assert done.returncode == 0, done.stderr
    assert operator.facts()[1:] == ("linear", "healthy")
    unit = "ddtree-gpu0-linear.service"
    ask = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:30000/server_info"
    assert host.says(ask) == "401"
    pid = host.says(f"systemctl show -P MainPID {unit}")
    seen = host.says(
        f"cat /proc/{pid}/cmdline /proc/{pid}/environ | tr '\\0' ' '; systemctl show {unit}; "
        f"systemctl cat {unit}; cat /var/lib/ddtree/audit.jsonl; journalctl --no-pager -u {unit}"
    )
    assert "key" in seen
    assert key not in seen
    assert key not in done.stderr + done.stdout
    operator.write_hosts([host.address])
    assert operator.run("rollback", "h1").returncode == 0
    operator.assert_as_found()


def test_a_service_has_a_user_of_its_own_that_can_write_nothing(operator: Deployer) -> None:
    host = operator.host
    unit = "ddtree-gpu0-tree.service"
    pid = host.says(f"systemctl show -P MainPID {unit}")
    status = dict(
        line.partition(":\t")[::2]
        for line in (host.root / f"proc/{pid}/status").read_text().splitlines()
    )
    assert int(status["Uid"].split()[0]) >= 61184  # systemd.exec(5): the range of dynamic users
    assert (status["CapEff"], status["CapBnd"]) == ("0" * 16, "0" * 16)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    entered = f"nsenter -t {pid} -m --"
    for path in ("/etc/x", "/var/lib/ddtree/x", "/usr/x", "/root/x"):
        assert host.ssh(f"{entered} touch {path}").returncode != 0
    said = host.says(f"systemctl show -P DeviceAllow {unit}")
    assert {word for word in said.split() if "nvidia" in word} == {
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    }


MODPROBE = """\
#!/bin/sh
echo "asked: $*"
case "$*" in *-u*-c=0*) [ -e /dev/nvidia-uvm ] || mknod -m 666 /dev/nvidia-uvm c 511 0;; esac
"""


def test_device_nodes_are_made_before_the_service_may_open_them(operator: Deployer) -> None:
    """With a stand-in for nvidia-modprobe; no card answers here, but what is allowed shows."""
    host, unit = operator.host, "ddtree-gpu0-tree.service"
    inside = (
        f"g=$(systemctl show -P ControlGroup {unit}); "
        "for f in /sys/fs/cgroup$g /sys/fs/cgroup/devices$g; do "
        "[ ! -d $f ] || echo $$ >$f/cgroup.procs; done; exec 3</dev/nvidia-uvm"
    )

    def opened() -> str:
        return host.ssh(inside).stderr

    host.says("rm /dev/nvidia-uvm")
    host.says(f"systemctl restart {unit}")  # nobody makes the node: the service starts without
    until(lambda: operator.facts() == (1, "tree", "healthy"), "it serves", 60)
    host.says("mknod -m 666 /dev/nvidia-uvm c 511 0")
    assert "Operation not permitted" in opened()

    host.says("rm /dev/nvidia-uvm")
    program = host.root / "usr/bin/nvidia-modprobe"
    program.write_text(MODPROBE)
    program.chmod(0o755)
    host.says(f"systemctl restart {unit}")
    until(lambda: operator.facts() == (1, "tree", "healthy"), "it serves", 60)
    assert "No such device or address" in opened()
    said = host.says("journalctl -q -o cat -u ddtree-gpu-nodes.service -g '^asked'").splitlines()
    assert [line.split()[1:2] for line in said] == [[], ["-c=255"], ["-u"]]
    program.unlink()


# ---- operators ----


def test_a_stop_that_comes_late_does_not_stop_what_has_come_back(operator: Deployer) -> None:
    host = operator.host
    with host.hold("systemctl", "stop ddtree-gpu0-tree", stubborn=True) as hold:
        process = operator.begin("deploy", "h1", "--mode", "linear")
        held = hold.reached().split()[0]
        process.kill()
        process.communicate()
        until(lambda: not operator.reverting(), "the host returns by itself", 40)
        assert not (host.root / "proc" / held).exists()  # ended, though it heeds no SIGTERM
        serving = operator.engines()
        hold.release()
    operator.assert_as_found()
    assert operator.engines() == serving


def test_a_lock_is_shown_waited_for_and_broken(operator: Deployer) -> None:
    assert operator.run("lock", "status", "h1").returncode == 0
    first = operator.begin_until("✓ start", "--mode", "linear", *NEVER_READY)
    shown = operator.run("lock", "status", "h1", "--json")
    assert shown.returncode == 5
    assert json.loads(shown.stdout)["lock"]["pid"] == first.pid
    status = operator.run("status", "--json")
    service = json.loads(status.stdout)["services"][0]
    assert (status.returncode, service["health"]) == (0, "swapping")
    assert "is bringing generation" in service["problem"]
    waited = operator.run("stop", "h1", "--lock-wait", "3")
    assert waited.returncode == 5
    broken = operator.run("lock", "break", "h1", "--reason", "ada went home")
    assert broken.returncode == 0, broken.stderr
    _, said = first.communicate(timeout=60)
    assert first.returncode == 5, said
    assert "is no longer this command's" in said
    until(lambda: not operator.reverting(), "the host returns by itself", 60)
    entries = json.loads(operator.run("audit", "h1", "--json").stdout)["entries"]
    (entry,) = [entry for entry in entries if entry["event"] == "lock-broken"]
    assert entry["reason"] == "ada went home"
    assert f"pid {first.pid}" in entry["previous"]
    operator.assert_as_found()


def test_prune_leaves_the_way_back(operator: Deployer) -> None:
    environments = operator.host.root / "var/lib/ddtree/environments"
    (environments / "engine-0ld").mkdir()
    (environments / "engine-0ld/environment.json").write_text('{"name": "engine-0ld"}')
    shown = json.loads(operator.run("prune", "h1", "--keep", "1", "--dry-run", "--json").stdout)
    assert shown["applied"] is False
    done = operator.run("prune", "h1", "--keep", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["generations"], found["applied"]) == (shown["generations"], True)
    assert found["environments"] == ["engine-0ld"]
    assert not (environments / "engine-0ld").exists()
    kept = sorted(map(int, found["kept"]["gpu0"]))
    folder = operator.host.root / "var/lib/ddtree/slots/gpu0/generations"
    assert sorted(int(path.name) for path in folder.iterdir()) == kept
    assert 1 in kept
    operator.assert_as_found()


def test_prune_makes_room_on_a_disk_that_is_full(operator: Deployer) -> None:
    begun = operator.host.root / "var/lib/ddtree/environments/engine-cpu-0123456789ab"
    operator.host.says(f"mkdir -p /var/lib/ddtree/environments/{begun.name}")
    operator.host.says("dd if=/dev/urandom bs=1M count=1 of=$(echo /var/lib/*/*/engine-*9ab)/part")
    operator.host.fill(0)
    done = operator.run("prune", "h1", "--json")
    assert done.returncode == 0, done.stderr
    assert begun.name in json.loads(done.stdout)["environments"]
    assert not begun.exists()
    assert "h1: no lock" in operator.run("lock", "status", "h1").stdout
    operator.host.heal()
    operator.assert_as_found()


# ---- rolls ----


@pytest.fixture
def roller(operators: list[Deployer], tmp_path: Path) -> Deployer:
    """An operator of all three hosts."""
    addresses = [operator.host.address for operator in operators]
    first = operators[0]
    first.env["XDG_STATE_HOME"] = str(tmp_path)
    first.write_hosts(addresses)
    for operator in operators:
        operator.host.hurt = True
    return first


def test_a_roll_ends_at_a_host_that_is_gone_and_is_resumed(
    roller: Deployer, operators: list[Deployer]
) -> None:
    gone = operators[1]
    shown = roller.run("deploy", "h1", "h2", "h3", "--mode", "linear", "--dry-run", "--json")
    assert [len(plan["steps"]) for plan in json.loads(shown.stdout)["plans"]] == [14] * 3
    gone.host.blackhole()
    rolled = roller.run(
        *("deploy", "h1", "h2", "h3", "--mode", "linear", "--parallel", "1", "--json")
    )
    assert rolled.returncode == 3, rolled.stderr
    roll = json.loads(rolled.stdout)
    results = {target["host"]: target["result"] for target in roll["targets"]}
    assert results == {"h1": "deployed", "h2": "unreachable", "h3": "waiting"}
    assert roll["halted"] == "1 failed, and 0 may"
    before = operators[0].engines()
    gone.host.heal()
    resumed = roller.run("deploy", "--resume", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("deployed") == 3
    assert operators[0].engines() == before  # what was good already was not touched
    back = [o.begin("rollback", o.name) for o in operators[1:]] + [roller.begin("rollback", "h1")]
    for process in back:
        _, said = process.communicate(timeout=90)
        assert process.returncode == 0, said
    roller.write_hosts([operators[0].host.address])
    for operator in operators:
        operator.assert_as_found()


def test_a_roll_that_is_interrupted_leaves_every_host_with_one_service(
    roller: Deployer, operators: list[Deployer]
) -> None:
    never = ["--mode", "linear", *NEVER_READY, "--canary", "0", "--parallel", "2"]
    process = roller.begin("deploy", "h1", "h2", "h3", *never)
    assert process.stderr is not None
    started = 0
    for line in process.stderr:
        started += "✓ start" in line
        if started == 2:
            break
    process.terminate()
    out, said = process.communicate(timeout=60)
    assert process.returncode == 6, said
    assert out.count("interrupted by SIGTERM; generation 1 serves again") == 2
    assert "halted: interrupted by SIGTERM" in out
    roller.write_hosts([operators[0].host.address])
    for operator in operators:
        operator.assert_as_found()
