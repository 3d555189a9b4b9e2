"""A GPU dies at night: its service moves to another host and serves nowhere twice.

Two real systemd hosts called as in the story; on GPU 0 of the target a wrapper that is not ours
has port 30000. The tests hand the hosts on as they found them: ct129 serves tree with budget 16.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import engine_wheel
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.host import Host
from tests.fleet.lab.topology import HostSpec
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator

pytestmark = pytest.mark.slow

SLOT = Path("var/lib/ddtree/slots/gpu1")
FELL_OFF = (
    "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
WRAPPER = "wrapper.service"
BUSY = 20000
"""MiB that the wrapper holds of the target's GPU 0."""


class Night(Operator):
    """An operator of ct129 and ct200, who deploys the stand-in engine."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__(fleet, folder)
        self.ct129, self.ct200 = fleet.hosts["ct129"], fleet.hosts["ct200"]
        entries = "".join(
            f"""\
  {host.name}:
    address: {host.address}
    revert_after: 8
    slots:
      gpu1: {{gpus: [1], port: 30001, service: {{start_timeout: 60, stop_timeout: 2}}}}
    protected:
      - {{name: wrapper, gpus: [0], port: 30000, reason: it has clients of its own}}
"""
            for host in (self.ct129, self.ct200)
        )
        self.write(hosts=f"hosts:\n{entries}")
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder))
        self.env["XDG_STATE_HOME"] = str(folder / "state")
        self.set_option("ConnectTimeout", "2")
        self.set_option("ServerAliveInterval", "1")

    def status(self, *hosts: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", *hosts, "--json").stdout)
        return found

    def serving(self) -> dict[str, tuple[object, ...]]:
        """Mode, budget and health of what runs, by host."""
        return {
            s["host"]: (s["mode"], s["budget"], s["health"])
            for s in self.status()["services"]
            if s["health"] not in {"stopped", "moved"}
        }

    def migrate(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("migrate", "ct129", *words, "--yes")

    def go_home(self) -> None:
        """Undo what a test has done, whatever that was."""
        for host in (self.ct129, self.ct200):
            host.heal()
        self.run("migrate", "ct129", "--resume", "--yes")
        self.run("uncordon", "ct129")
        self.run("migrate", "ct129", "--undo", "--yes")
        if self.serving() != HOME:
            self.run("stop", "ct200")
            done = self.run("deploy", "ct129", "--mode", "tree", "--budget", "16")
            assert done.returncode == 0, done.stderr
        assert self.serving() == HOME


HOME = {"ct129": ("tree", 16, "healthy")}
MOVED = {"ct200": ("tree", 16, "healthy")}


def engines(host: Host) -> list[str]:
    """The processes of services on a host."""
    return host.says("pgrep -af 'ddtree-engine [s]erve' || true").splitlines()


def wrapper(host: Host) -> tuple[str, ...]:
    """What there is of the wrapper: its process, and whether it runs."""
    shown = host.says(f"systemctl show -p MainPID -p ActiveState -p InvocationID {WRAPPER}")
    return tuple(shown.splitlines())


@pytest.fixture(scope="module")
def night_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    specs = [HostSpec(name, gpus=2, disk="16G") for name in ("ct129", "ct200")]
    with Fleet.boot(specs) as fleet:
        night = Night(fleet, tmp_path_factory.mktemp("night"))
        for host in (night.ct129, night.ct200):
            host.says(
                f"systemd-run --unit {WRAPPER} /usr/bin/python3 -m http.server 30000 "
                "--bind 127.0.0.1 --directory /srv"
            )
        done = night.run("deploy", "ct129", "--mode", "tree", "--budget", "16")
        assert done.returncode == 0, done.stderr
        yield night
        night.close()


@pytest.fixture
def night(night_of_the_module: Night) -> Iterator[Night]:
    yield night_of_the_module
    night_of_the_module.go_home()


def test_the_story(night: Night) -> None:
    """Xid 79 on GPU 1 of ct129 while it serves tree with budget 16."""
    before = wrapper(night.ct129), wrapper(night.ct200)
    night.ct129.log(FELL_OFF)
    night.ct129.set_gpus(night.ct129.healthy_gpus.with_gpu(1, fault="lost"))
    seen = night.run("status", "ct129")
    assert seen.returncode == 1
    assert "cordon-host: GPU 1: Xid 79: the GPU has fallen off the bus" in seen.stdout

    done = night.run("migrate", "ct129", "ct200", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["results"] == [
        {
            "source": "ct129/gpu1",
            "target": "ct200/gpu1",
            "serves": True,
            "fenced": True,
            "error": None,
        }
    ]
    assert {"plan", "provision", "start", "verify"} <= set(document["seconds"])
    assert night.serving() == MOVED
    service = document["plan"]["moves"][0]["service"]
    assert (service["mode"], service["budget"], service["topk"]) == ("tree", 16, 8)
    assert engines(night.ct129) == []
    assert (wrapper(night.ct129), wrapper(night.ct200)) == before

    night.ct129.set_gpus(night.ct129.healthy_gpus)
    night.ct129.reboot()
    until(
        lambda: night.ct129.ssh("systemctl is-system-running --wait").stdout.strip() != "",
        "ct129 has booted",
    )
    assert engines(night.ct129) == []
    started = night.ct129.ssh("systemctl start ddtree-gpu1-tree.service")
    assert "masked" in started.stderr
    refused = night.run("deploy", "ct129", "--mode", "tree")
    assert refused.returncode == 1
    assert "the host is cordoned: its services migrate: the GPU is lost" in refused.stderr
    assert "has moved to ct200/gpu1" in refused.stderr
    assert night.serving() == MOVED
