"""A GPU dies at night: its service moves to another host and serves nowhere twice.

Two real systemd hosts called as in the story, with wrappers that are not ours: see `night`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

import pytest

from tests.fleet.lab.gpu import Failure, GpuFault
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

FULL = os.environ.get("FULL") == "1"
"""Whether every sign is tried on real hosts, and not one of them; ROTATION=N chooses another.

`test_migration_matrix` plans for every sign, and `test_migrate_faults` hurts every step.
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


def faulty(fault: GpuFault) -> Callable[[Host], None]:
    return lambda host: host.set_gpus(host.healthy_gpus.with_gpu(1, fault=fault))


def failing(failure: Failure) -> Callable[[Host], None]:
    return lambda host: host.set_gpus(replace(host.healthy_gpus, failure=failure))


GPU, HOST = "cordon {}:1", "cordon {}"
OF_ONE_GPU: dict[GpuFault, tuple[str, str]] = {
    "n/a": ("degraded", ""),
    "inforom": ("degraded", ""),
    "unknown-error": ("drain-gpu", GPU),
    "requires-reset": ("drain-gpu", GPU),
    "err": ("drain-gpu", GPU),
    "lost": ("cordon-host", HOST),
    "handle": ("cordon-host", HOST),
    "handle-lost": ("cordon-host", HOST),
    "handle-everywhere": ("cordon-host", HOST),
    "missing": ("cordon-host", HOST),
}
OF_THE_DRIVER: dict[Failure, tuple[str, str]] = {
    "no-driver": ("cordon-host", HOST),
    "no-devices": ("cordon-host", HOST),
    "no-library": ("cordon-host", HOST),
    "mismatch": ("cordon-host", HOST),
    "garbage": ("degraded", ""),
    "crash": ("cordon-host", HOST),
    "hang": ("cordon-host", HOST),
    "hang-stubborn": ("cordon-host", HOST),
    "hang-uninterruptible": ("cordon-host", HOST),
}
SICK: dict[str, tuple[Callable[[Host], None], str, str]] = {
    "xid-drain": (lambda host: host.log(UNCONTAINED), "drain-gpu", GPU),
    "xid-application": (lambda host: host.log(OF_AN_APPLICATION), "restart-app", ""),
    **{str(fault): (faulty(fault), *told) for fault, told in OF_ONE_GPU.items()},
    **{str(failure): (failing(failure), *told) for failure, told in OF_THE_DRIVER.items()},
}
"""What is wrong with the source, the verdict on it, and what is cordoned first."""

SHOWN = sorted(SICK)
CHOSEN = SHOWN if FULL else [SHOWN[(10 + int(os.environ.get("ROTATION", "0"))) % len(SHOWN)]]


def test_every_answer_of_the_driver_is_in_the_matrix() -> None:
    assert {*OF_ONE_GPU} == {*get_args(GpuFault)} - {""}
    assert {*OF_THE_DRIVER} == {*get_args(Failure)} - {""}


@pytest.mark.parametrize("sign", CHOSEN)
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
