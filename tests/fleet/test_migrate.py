"""A GPU dies at night: its service moves to another host and serves nowhere twice.

Two real systemd hosts called as in the story, with wrappers that are not ours: see `night`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ddtreectl.plan.migration import MoveAction, steps
from tests.ctl.test_placement import moving
from tests.fleet.lab.host import Host
from tests.fleet.lab.waiting import until
from tests.fleet.night import (
    OF_AN_APPLICATION,
    UNCONTAINED,
    Night,
    booted,
    engines,
)

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("FULL"))
"""Whether every sign and step is tried on real hosts, and not a choice of them.

`test_migration_matrix` plans for every sign, and for every state that a migration can be left in.
"""


@pytest.fixture(scope="module")
def whole_night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    with booted(tmp_path_factory.mktemp("night")) as night:
        yield night


@pytest.fixture
def night(whole_night: Night) -> Iterator[Night]:
    yield whole_night
    whole_night.settle()


def test_undo_brings_it_back_while_the_source_is_healthy(night: Night) -> None:
    assert night.migrate().returncode == 0
    assert night.moved()
    undone = night.migrate("--undo")
    assert undone.returncode == 0, undone.stderr
    assert night.stayed()


SICK: dict[str, tuple[Callable[[Host], None], str, str]] = {
    "xid-drain": (lambda host: host.log(UNCONTAINED), "drain-gpu", "cordon {}:1"),
    "xid-application": (lambda host: host.log(OF_AN_APPLICATION), "restart-app", ""),
    "requires-reset": (
        lambda host: host.set_gpus(host.healthy_gpus.with_gpu(1, fault="requires-reset")),
        "drain-gpu",
        "cordon {}:1",
    ),
    "handle-everywhere": (
        lambda host: host.set_gpus(host.healthy_gpus.with_gpu(1, fault="handle-everywhere")),
        "cordon-host",
        "cordon {}",
    ),
    "missing": (
        lambda host: host.set_gpus(host.healthy_gpus.with_gpu(1, fault="missing")),
        "cordon-host",
        "cordon {}",
    ),
    "mismatch": (
        lambda host: host.set_gpus(replace(host.healthy_gpus, failure="mismatch")),
        "cordon-host",
        "cordon {}",
    ),
    "hang": (
        lambda host: host.set_gpus(replace(host.healthy_gpus, failure="hang-uninterruptible")),
        "cordon-host",
        "cordon {}",
    ),
}
"""What is wrong with the source, the verdict on it, and what is cordoned first."""


@pytest.mark.parametrize("sign", SICK if FULL else ["missing"])
def test_a_service_leaves_a_sick_source(night: Night, sign: str) -> None:
    hurt, verdict, cordon = SICK[sign]
    hurt(night.source)
    (host,) = night.status(night.source.name)["hosts"]
    assert host["health"]["verdict"] == verdict
    done = night.migrate("--json")
    assert done.returncode == 0, done.stderr
    titles = [step["title"] for step in json.loads(done.stdout)["plan"]["steps"]]
    cordons = [title for title in titles if title.startswith("cordon")]
    assert cordons == ([cordon.format(night.source.name)] if cordon else [])
    night.source.set_gpus(night.source.healthy_gpus)
    assert night.moved()


@pytest.mark.parametrize("fault", ["cut", "freeze"] if FULL else ["cut"])
def test_a_source_out_of_reach_is_fenced_at_first_contact(night: Night, fault: str) -> None:
    assert night.status(night.source.name)["services"]  # which the operator remembers
    getattr(night.source, fault)()
    done = night.migrate("--json")
    assert done.returncode == 3, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert (result["serves"], result["fenced"]) == (True, False)
    away = night.run("status", night.target.name)
    assert f"has come from {night.source.name}/gpu1, which is not fenced yet" in away.stdout
    night.source.heal()
    split = night.run("status", night.source.name)
    assert "split: it runs here, although its service has moved" in split.stdout
    assert split.returncode == 1
    contact = night.run("stop", night.source.name)  # any command that works on the host
    assert f"fence {night.source.name}/gpu1" in contact.stderr
    assert engines(night.source) == []
    assert night.migrate("--resume").returncode == 0
    assert night.moved()
    assert night.status()["hosts"][0]["moves"] == []


UNFIT: dict[str, tuple[Callable[[Host], None], str]] = {
    "disk-full": (lambda host: host.fill(64), "MiB free"),
    "abi-misfit": (
        lambda host: host.set_gpus(host.healthy_gpus.with_gpu(1, compute_cap="6.1")),
        "compute capability",
    ),
    "too-small": (
        lambda host: host.set_gpus(host.healthy_gpus.with_gpu(1, memory_used=97500)),
        "MiB of its GPU are free",
    ),
    "sick": (lambda host: host.log(UNCONTAINED), "Xid 95"),
    "cut": (lambda host: host.cut(), "does not answer"),
}
"""What is wrong with the target, and what is said of it."""


@pytest.mark.parametrize("fault", UNFIT)
def test_a_target_that_will_not_do_is_named_and_nothing_is_touched(
    night: Night, fault: str
) -> None:
    hurt, said = UNFIT[fault]
    hurt(night.target)
    done = night.migrate()
    assert done.returncode == 1, done.stderr
    assert f"no slot takes {night.source.name}/gpu1" in done.stdout
    assert said in done.stdout
    night.target.heal()
    assert night.stayed()


def test_a_target_that_is_lost_in_the_middle_of_its_start(night: Night) -> None:
    """The source goes on; the target empties the slot by itself, and can be tried again."""
    with night.target.hold("systemctl", "start --no-block") as hold:
        process = night.begin("migrate", night.source.name, "--yes")
        hold.reached(60)
        night.target.cut()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said
    assert engines(night.source)
    night.target.heal()
    done = night.migrate()
    assert done.returncode == 0, done.stderr
    assert night.moved()


STEPS = {step.action: step.title.split()[0] for step in steps([moving()], cordon="ct129")}
"""The first word of each step of a migration, as it is said when the step begins."""


@pytest.mark.parametrize("action", STEPS if FULL else [MoveAction.START, MoveAction.MARK_MOVED])
def test_a_migration_whose_operator_is_lost_goes_on(night: Night, action: MoveAction) -> None:
    """The operator is killed when a step begins: nothing is lost, and nothing serves twice."""
    night.source.log(UNCONTAINED)
    process = night.begin("migrate", night.source.name, "--yes")
    assert process.stderr is not None
    assert any(line.startswith(f"{STEPS[action]} ") for line in process.stderr)
    process.kill()
    process.wait()
    done = night.migrate()  # which takes it up, wherever it was
    assert done.returncode == 0, done.stderr
    assert night.moved()


def test_a_unit_does_not_restart_on_a_gpu_that_is_gone(night: Night) -> None:
    """Its engine dies; at the next start the card is looked for, without asking nvidia-smi."""
    source, unit = night.source, "ddtree-gpu1-tree.service"
    source.set_gpus(
        replace(source.healthy_gpus.with_gpu(1, fault="missing"), failure="hang-stubborn")
    )
    source.says(f"systemctl kill --kill-whom=main -s KILL {unit}")

    def state() -> str:
        shown = source.says(f"systemctl show -p ActiveState,Result --value {unit}")
        return " ".join(shown.split())

    until(lambda: state() == "exec-condition inactive", "the start was skipped", deadline=60)
    said = source.says(f"journalctl -u {unit} -o cat -n 20")
    assert f"{source.healthy_gpus.gpus[1].uuid} is not there" in said
    assert engines(source) == []
    source.set_gpus(source.healthy_gpus)
    source.says(f"systemctl start {unit}")
    assert night.stayed()


def test_the_model_is_copied_where_it_is_missing(night: Night) -> None:
    folder, file = "/srv/models/m", "model.safetensors"
    night.source.says(
        f"mkdir -p {folder} && cd {folder} && echo '{{}}' >config.json && "
        f"head -c 20M /dev/urandom >{file}"
    )
    model = ("--model", folder, "--drafter", folder)
    done = night.run("deploy", night.source.name, "--mode", "tree", "--budget", "16", *model)
    assert done.returncode == 0, done.stderr
    done = night.migrate("--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "copy-weights" in document["seconds"]
    assert document["plan"]["moves"][0]["service"]["model"] == folder
    assert night.moved()
    sums = [host.says(f"cd {folder} && sha256sum {file} config.json") for host in night.hosts]
    assert sums[0] == sums[1]
