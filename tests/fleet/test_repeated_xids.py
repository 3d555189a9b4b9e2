"""An error of an application that comes again and again drains its GPU, with no operator there."""

import json
from collections.abc import Iterator

import pytest

from tests.fleet.lab.waiting import until
from tests.fleet.night import OF_AN_APPLICATION, Night, booted, engines

pytestmark = pytest.mark.slow

UNIT = "ddtree-gpu1-tree.service"


@pytest.fixture
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    with booted(tmp_path_factory.mktemp("night")) as night:
        yield night


def test_a_repeated_error_of_an_application_drains_its_gpu(night: Night) -> None:
    source = night.source

    def crash(times: int) -> None:
        for _ in range(times):
            source.log(OF_AN_APPLICATION)
        source.says(f"systemctl kill --kill-whom=main -s KILL {UNIT}")

    crash(3)
    until(lambda: night.serving() == {"ct129": ("tree", 16, "healthy")}, "it has restarted")
    watch = night.begin("watch", "--interval", "0.5", "--json")
    assert watch.stderr is not None
    assert watch.stdout is not None
    crash(1)
    told = {}
    for line in watch.stdout:
        change = json.loads(line)
        told[change["what"]] = change
        if change["after"] == "drained":
            break
    watch.kill()
    assert told["GPU 1"]["after"] == "drain-gpu"
    assert "drained by the host itself: Xid 31, 4 times within 1 h" in told["gpu1"]["reason"]
    assert "`ddtreectl migrate ct129:1`" in told["gpu1"]["text"]
    said = source.says(f"journalctl -u {UNIT} -o cat -n 20")
    assert "is drained: Xid 31, 4 times within 1 h; ddtree-gpu1-tree.service does not" in said
    assert source.says(f"systemctl show -p Result --value {UNIT}") == "exec-condition"

    source.reboot()  # after which its kernel log has nothing of it
    until(
        lambda: "running" in source.ssh("systemctl is-system-running --wait").stdout,
        "it has booted",
    )
    assert engines(source) == []
    seen = night.run("status", "ct129")
    assert seen.returncode == 1
    assert "drained" in seen.stdout
    assert "GPU 1 is cordoned: Xid 31, 4 times within 1 h (ddtree-gpu1-tree.service" in seen.stdout
    refused = night.run("deploy", "ct129", "--mode", "tree")
    assert "GPU 1 is cordoned: Xid 31" in refused.stderr

    assert night.run("uncordon", "ct129:1").returncode == 0
    assert night.run("rollback", "ct129").returncode == 0
    assert night.stayed()
    crash(4)
    until(lambda: night.status("ct129")["services"][0]["health"] == "drained", "it is drained")
    moved = night.run("migrate", "ct129", "--yes")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert night.moved()
