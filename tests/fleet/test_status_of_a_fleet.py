"""Status over real SSH: one probe a host, facts of GPUs, and a watch that keeps its connections."""

import json
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator


@pytest.fixture
def operator(fleet: Fleet, tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(fleet, tmp_path)
    operator.set_option("ConnectTimeout", "2")
    operator.set_option("ServerAliveInterval", "1")
    yield operator
    operator.close()


def logins(fleet: Fleet, name: str) -> int:
    said = fleet.hosts[name].says("journalctl -q -o cat -u ssh -g '^Accepted publickey' || true")
    return len(said.splitlines())


def hosts(document: dict[str, Any]) -> dict[str, Any]:
    return {entry["host"]: entry for entry in document["hosts"]}


def test_what_is_not_told_in_time_is_unknown_and_has_not_failed(
    fleet: Fleet, operator: Operator
) -> None:
    slow = fleet.hosts["h2"].root / "usr/local/bin/systemctl"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    try:
        done = operator.run("status", "--json")
    finally:
        slow.unlink()
    found = hosts(json.loads(done.stdout))
    assert done.returncode == 3
    assert found["h1"]["reachable"]
    assert "does not say in time" in found["h2"]["error"]
    assert "asked 2 times, it did not tell: units within 15 s" in found["h2"]["cause"]
    assert "is it overloaded" in found["h2"]["hint"]


def test_one_login_a_host_tells_all(fleet: Fleet, operator: Operator) -> None:
    before = {name: logins(fleet, name) for name in fleet.hosts}
    done = operator.run("status", "--json")
    assert done.returncode == 0, done.stderr
    found = hosts(json.loads(done.stdout))
    assert list(found) == ["h1", "h2", "h3"]
    for entry in found.values():
        assert entry["gpus"]["state"] == "ok"
        assert [gpu["compute_capability"] for gpu in entry["gpus"]["gpus"]] == [[12, 0]] * 2
        assert entry["gpus"]["gpus"][0]["remap_failed"] is False
    # `logins` itself logs in once each time.
    assert {name: logins(fleet, name) - count for name, count in before.items()} == dict.fromkeys(
        before, 2
    )


def test_what_drivers_say_is_told_of_each_host(fleet: Fleet, operator: Operator) -> None:
    first, second = fleet.hosts["h1"], fleet.hosts["h2"]
    first.set_gpus(first.healthy_gpus.with_gpu(1, fault="lost"))
    second.set_gpus(
        second.healthy_gpus.with_gpu(
            0, fields={"remapped_rows.pending": "Yes", "gpu_recovery_action": "Reset"}
        )
    )
    done = operator.run("status")
    assert done.returncode == 1
    assert "h1: cordon-host: GPU 1: the GPU is lost" in done.stdout
    assert "h2: drain-gpu: GPU 0: the driver wants the GPU reset (Reset)" in done.stdout
    assert "h2: degraded: GPU 0: rows of memory are replaced at the next reset" in done.stdout
    assert "h3: " not in done.stdout


def read_document(process: Any, deadline: float = 60.0) -> dict[str, Any]:
    end = time.monotonic() + deadline
    assert select.select([process.stdout], [], [], end - time.monotonic())[0], "it says nothing"
    document: dict[str, Any] = json.loads(process.stdout.readline())
    return document


def test_a_watch_keeps_its_connections_and_sees_a_host_go_and_come(
    fleet: Fleet, operator: Operator
) -> None:
    before = logins(fleet, "h2")
    watch = operator.begin("status", "--watch", "--interval", "0.2", "--json")
    for _ in range(4):
        assert all(entry["reachable"] for entry in read_document(watch)["hosts"])
    assert logins(fleet, "h2") - before == 2  # that of the watch, and the one that counts
    fleet.hosts["h3"].kill()
    until(lambda: not hosts(read_document(watch))["h3"]["reachable"], "h3 is gone", deadline=60)
    fleet.hosts["h3"].start()
    until(lambda: hosts(read_document(watch))["h3"]["reachable"], "h3 is back", deadline=60)
    assert hosts(read_document(watch))["h1"]["reachable"]
    watch.terminate()
    watch.communicate(timeout=30)
    until(
        lambda: fleet.hosts["h1"].says("pgrep -fc 'python3 [-]IS' || true").strip() == "0",
        "nothing of the watch is left on the host",
    )


def test_a_watch_ends_after_so_many_looks(operator: Operator) -> None:
    done = operator.run("status", "h1", "--watch", "--interval", "0", "--count", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("HOST") == 2
    assert done.stdout.count("h1") == 4
