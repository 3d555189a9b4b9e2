"""GPUs that fail, on real hosts: what status says within one probe, and what cordons hold."""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.gpu import Failure
from tests.fleet.lab.host import Host
from tests.fleet.operator import Operator

FELL_OFF = "Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture
def operator(fleet: Fleet, tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(fleet, tmp_path)
    operator.set_option("ConnectTimeout", "5")
    operator.env["XDG_STATE_HOME"] = str(tmp_path / "state")
    yield operator
    operator.close()


@pytest.fixture
def h1(fleet: Fleet) -> Host:
    return fleet.hosts["h1"]


def health(operator: Operator, host: str = "h1") -> dict[str, Any]:
    """The health of a host's GPUs, by one call of status."""
    document = json.loads(operator.run("status", host, "--json").stdout)
    found: dict[str, Any] = document["hosts"][0]["health"]
    return found


def verdicts(found: dict[str, Any]) -> list[str]:
    return [gpu["verdict"] for gpu in found["gpus"]]


def test_an_xid_in_the_kernel_log_is_seen_by_the_next_probe(h1: Host, operator: Operator) -> None:
    assert health(operator)["verdict"] == "ok"
    watch = operator.begin("watch", "h1", "--interval", "0.5", "--json")
    h1.log(f"NVRM: {FELL_OFF}")
    h1.log("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.")
    found = health(operator)
    assert found["verdict"] == "cordon-host"
    assert verdicts(found) == ["ok", "cordon-host"]
    (remark,) = found["remarks"]
    assert remark["gpu"] == "GPU 1"
    assert remark["reason"].startswith("Xid 79: the GPU has fallen off the bus")
    assert "RESTART_BM" in remark["source"]
    said = operator.run("status", "h1")
    assert said.returncode == 1
    assert "h1: cordon-host: GPU 1: Xid 79: the GPU has fallen off the bus" in said.stdout
    refused = operator.run("deploy", "h1", "--mode", "tree", "--gpu", "0")
    assert refused.returncode == 1
    assert "GPU 1: Xid 79" in refused.stderr

    assert watch.stdout is not None
    change = json.loads(watch.stdout.readline())
    assert [change[key] for key in ("host", "what", "after")] == ["h1", "GPU 1", "cordon-host"]
    assert "the GPU has fallen off the bus" in change["text"]
    watch.send_signal(signal.SIGINT)
    rest, _ = watch.communicate(timeout=30)
    assert (watch.returncode, rest) == (0, "")

    h1.reboot()  # which the driver asks for; what the log of the last boot says is history
    assert health(operator)["verdict"] == "ok"


def test_a_watch_that_sees_a_reboot_goes_on(h1: Host, operator: Operator) -> None:
    watch = operator.begin("watch", "h1", "--interval", "0.2")
    assert watch.stderr is not None
    assert watch.stdout is not None
    assert "watching 1 hosts" in watch.stderr.readline()
    h1.reboot()
    assert "h1: unreachable (was reachable): " in watch.stdout.readline()
    hint = watch.stdout.readline()
    assert "hint: it boots, or its network is gone; it is looked at again when it answers" in hint
    assert "h1: reachable (was unreachable)" in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=30)


def test_a_lost_gpu_is_told_from_those_that_still_answer(h1: Host, operator: Operator) -> None:
    for fault in ("lost", "handle-lost"):
        h1.set_gpus(h1.healthy_gpus.with_gpu(0, fault=fault))
        found = health(operator)
        assert verdicts(found) == ["cordon-host", "ok"]
        assert found["remarks"][0]["reason"] == "the GPU is lost"
    h1.set_gpus(h1.healthy_gpus.with_gpu(1, fault="handle-everywhere"))
    found = health(operator)
    assert found["verdict"] == "cordon-host"
    assert "the driver cannot open the GPU" in found["remarks"][0]["reason"]
    h1.set_gpus(h1.healthy_gpus.with_gpu(0, fault="missing"))
    assert "(1 of 2 are there)" in health(operator)["remarks"][0]["reason"]


def test_a_driver_that_does_not_know_every_field_is_asked_for_less(
    h1: Host, operator: Operator
) -> None:
    h1.set_gpus(replace(h1.healthy_gpus, unknown_fields=("gpu_recovery_action", "compute_cap")))
    found = health(operator)
    assert (found["verdict"], verdicts(found)) == ("ok", ["ok", "ok"])


@pytest.mark.parametrize("failure", ["hang-uninterruptible", "mismatch", "crash"])
def test_what_is_wrong_with_the_driver_is_a_verdict(
    h1: Host, operator: Operator, failure: Failure
) -> None:
    h1.set_gpus(replace(h1.healthy_gpus, failure=failure))
    found = health(operator)
    assert found["verdict"] == "cordon-host"
    words = {"hang-uninterruptible": "hangs", "mismatch": "upgraded", "crash": "crashes"}
    assert words[failure] in found["remarks"][0]["reason"]


def test_a_cordon_holds_over_a_reboot_and_follows_its_card(h1: Host, operator: Operator) -> None:
    card = h1.healthy_gpus.gpus[1].uuid
    slip = operator.run("cordon", "h1:2", "--reason", "it smells")
    assert slip.returncode == 2
    assert "`h1` has no GPU 2\nhint: it has 2" in slip.stderr
    done = operator.run("cordon", "h1:1", "--reason", "it smells")
    assert done.returncode == 0, done.stderr
    h1.reboot()
    found = health(operator)
    assert [cordon["uuid"] for cordon in found["cordons"]] == [card]
    assert [gpu["cordoned"] for gpu in found["gpus"]] == [False, True]
    refused = operator.run("deploy", "h1", "--mode", "tree", "--gpu", "1")
    assert refused.returncode == 1
    assert "GPU 1 is cordoned: it smells" in refused.stderr
    h1.set_gpus(h1.healthy_gpus.with_gpu(0, fault="missing"))
    moved = operator.run("deploy", "h1", "--mode", "tree", "--gpu", "0")
    assert "is cordoned: it smells" in moved.stderr
    h1.set_gpus(h1.healthy_gpus)
    assert operator.run("uncordon", "h1:1").returncode == 0
    assert health(operator)["cordons"] == []


def test_uncordon_settles_what_the_log_has(h1: Host, operator: Operator) -> None:
    uncontained = "NVRM: Xid (PCI:0000:0b:00): 95, pid=7, name=python3, Uncontained: LTC TAG"
    h1.log(uncontained)
    assert verdicts(health(operator)) == ["drain-gpu", "ok"]
    drained = operator.run("drain", "h1:0", "--reason", "Xid 95")
    assert drained.returncode == 0, drained.stderr
    assert "h1/gpu0: empty" in drained.stdout
    ended = operator.run("uncordon", "h1:0")
    assert "1 kind of errors in its kernel log are settled" in ended.stdout
    assert verdicts(health(operator)) == ["ok", "ok"]


def test_a_host_out_of_reach_is_cordoned_with_the_operator_until_it_answers(
    h1: Host, operator: Operator
) -> None:
    h1.cut()
    done = operator.run("cordon", "h1", "--reason", "does not answer")
    assert done.returncode == 4, done.stderr
    away = operator.run("status", "h1")
    assert "the host is cordoned: does not answer" in away.stdout
    h1.heal()
    refused = operator.run("deploy", "h1", "--mode", "tree", "--gpu", "0")
    assert "the host is cordoned: does not answer" in refused.stderr
    assert [cordon["kept"] for cordon in health(operator)["cordons"]] == ["operator"]
    operator.run("cordon", "h1:0", "--reason", "as well")  # which reaches the host
    assert {cordon["kept"] for cordon in health(operator)["cordons"]} == {"host"}
    assert operator.run("uncordon", "h1").returncode == 0
    assert health(operator)["cordons"] == []
