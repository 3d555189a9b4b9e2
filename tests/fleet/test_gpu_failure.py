"""A GPU dies under load: the real engine behind the real router, on hosts whose GPUs are played.

On GPU 1 of ct129 is one replica, on GPU 2 of ct200 the other one, both at port 30001; ct200 has
the router. On GPU 0 of both a wrapper that is not ours has port 30000. The tests build on each
other: the replicas are rolled from linear to tree, one is drained and put back, and GPU 1 of ct129
dies.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import real_engine
from tests.fleet.clients import Load, clients
from tests.fleet.deployer import read_until
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.lab.waiting import until
from tests.fleet.night import FELL_OFF, WRAPPER, engines, wrapper
from tests.fleet.operator import Operator

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

ROUTER_PORT = 8000
ASKED: dict[str, object] = {"model": real_engine.MODEL, "temperature": 0, "ignore_eos": True}
BODIES: list[dict[str, object]] = [
    {**ASKED, "prompt": "def fibonacci(n):\n", "max_tokens": 24},
    {**ASKED, "prompt": "class Stack:\n", "max_tokens": 24, "stream": True},
    {**ASKED, "prompt": "for line in", "max_tokens": 48, "stream": True},
]
LONG: dict[str, object] = {
    **ASKED,
    "prompt": "import json\n",
    "max_tokens": 700,
    "stream": True,
    "ddtree": {"mode": "ar"},
}
"""Outlasts a drain that would not wait for it, and what the unit is given to stop."""

BOTH = ("ct129", "ct200", "--port", "30001")
SERVICE = "service: {start_timeout: 200, stop_timeout: 2}"


class Replicas(Operator):
    """An operator of ct129 and ct200, who deploys the real engine.

    Attributes:
        first: the replica on ct129, as the router reaches it.
        second: the one on ct200.
        spare: the slot of ct200 that is empty at first.
    """

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__(fleet, folder)
        self.fleet = fleet
        self.ct129, self.ct200 = fleet.hosts["ct129"], fleet.hosts["ct200"]
        self.url = f"http://{self.ct200.address}:{ROUTER_PORT}"
        self.first = f"http://{self.ct129.address}:30001"
        self.second, self.spare = "http://127.0.0.1:30001", "http://127.0.0.1:30002"
        wrapper = "{name: wrapper, gpus: [0], port: 30000, reason: it has clients of its own}"
        self.write(
            hosts=f"""\
router: {{host: ct200, address: {self.ct200.address}, port: {ROUTER_PORT}, drain_timeout: 100}}
hosts:
  ct129:
    address: {self.ct129.address}
    user: deploy
    slots:
      gpu1: {{gpus: [1], port: 30001, address: 0.0.0.0, {SERVICE}}}
    protected: [{wrapper}]
  ct200:
    address: {self.ct200.address}
    slots:
      gpu1: {{gpus: [1], port: 30002, address: 0.0.0.0, {SERVICE}}}
      gpu2: {{gpus: [2], port: 30001, address: 0.0.0.0, {SERVICE}}}
    protected: [{wrapper}]
"""
        )
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(real_engine.engine(folder))
        self.env["XDG_STATE_HOME"] = str(folder / "state")

    def done(self, *words: str, timeout: float = 300.0) -> str:
        """Run ddtreectl, which must succeed; what it has told on the way."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stderr + done.stdout

    def services(self) -> dict[str, tuple[object, ...]]:
        """Mode, budget and health of each service."""
        services = json.loads(self.run("status", "--json").stdout)["services"]
        return {f"{s['host']}/{s['slot']}": (s["mode"], s["budget"], s["health"]) for s in services}

    def workers(self) -> dict[str, str]:
        """The router's word on each worker."""
        router: dict[str, Any] = json.loads(self.run("router", "status", "--json").stdout)
        return {worker["name"]: worker["status"] for worker in router["workers"]}

    def load(self, worker: str) -> int:
        """How many requests the router has in flight to a worker."""
        router: dict[str, Any] = json.loads(self.run("router", "status", "--json").stdout)
        return next((int(w["load"]) for w in router["workers"] if w["name"] == worker), 0)

    def clients(self, *bodies: dict[str, object]) -> AbstractContextManager[Load]:
        """A client of the router for each body."""
        count = str(len(bodies))
        return clients(self.fleet, self.url, bodies, "--clients", count, "--pause", "0.3")


@pytest.fixture(scope="module")
def night(router_wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Bare hosts without a network; ct129 is provisioned, and ct200 has its environment of it."""
    wheels = real_engine.download(tmp_path_factory.mktemp("wheels"))
    specs = [HostSpec("ct129", gpus=2, disk="16G"), HostSpec("ct200", gpus=3, disk="16G")]
    with Fleet.boot(specs) as fleet:
        night = Replicas(fleet, tmp_path_factory.mktemp("night"))
        for host in fleet.hosts.values():
            assert host.says("ls -A /var/lib/ddtree") == ""
            host.says(
                f"systemd-run --unit {WRAPPER} /usr/bin/python3 -m http.server 30000 "
                "--bind 127.0.0.1 --directory /srv"
            )
        try:
            night.done("provision", "ct129", "--wheelhouse", str(wheels))
            shutil.rmtree(wheels)
            night.done("provision", "ct200", "--from", "ct129")
            night.done("router", "deploy", "--wheelhouse", str(router_wheelhouse))
            said = night.done("deploy", *BOTH, "--mode", "linear", "--canary", "0")
            assert "build environment" not in said
            yield night
        finally:
            night.close()


def test_a_roll_loses_no_request(night: Replicas) -> None:
    roll = ("--mode", "tree", "--budget", "16", "--canary", "0", "--parallel", "2")
    with night.clients(*BODIES) as load:
        said = night.done("deploy", *BOTH, *roll)
    assert "of ct129/gpu1, ct200/gpu2 at most 1 at a time is out of the router" in said
    for name in ("ct129/gpu1", "ct200/gpu2"):
        assert f"take {name} out of the router" in said
        assert f"put {name} into the router" in said
    assert load.failed == []
    assert load.workers.keys() == {night.first, night.second}
    assert [len(texts) for texts in load.texts] == [1] * len(BODIES)
    assert night.services() == {
        "ct129/gpu1": ("tree", 16, "healthy"),
        "ct200/gpu2": ("tree", 16, "healthy"),
    }
    assert night.workers() == {"ct129/gpu1": "ready", "ct200/gpu2": "ready"}


def test_a_drain_waits_for_what_runs_and_takes_nothing_new(night: Replicas) -> None:
    with night.clients(LONG, LONG, LONG) as load:
        until(lambda: night.load("ct129/gpu1") > 0, "ct129 has requests", deadline=60)
        drain = read_until("✓ take ct129/gpu1 out", night.begin("drain", "ct129:1"))
        out = time.time()
        _, said = drain.communicate(timeout=150)
        ended = time.time()
        assert drain.returncode == 0, said
        assert said.index("✓ wait for its running requests") < said.index("✓ stop ddtree-gpu1")
        until(lambda: night.load("ct200/gpu2") > 0, "ct200 goes on", deadline=60)
    assert load.failed == []
    of_ct129 = [request for request in load.requests if request.worker == night.first]
    assert any(request.began < out < request.ended for request in of_ct129)
    assert max(request.began for request in of_ct129) < out
    assert max(request.ended for request in of_ct129) < ended
    assert engines(night.ct129) == []
    until(lambda: night.workers() == {"ct200/gpu2": "ready"}, "the router has forgotten the other")
    night.done("uncordon", "ct129:1")
    night.done("rollback", "ct129")
    assert night.workers() == {"ct129/gpu1": "ready", "ct200/gpu2": "ready"}


def test_a_gpu_dies_and_its_service_moves(night: Replicas) -> None:
    """Clients lose what was in flight on the dead GPU, and nothing else."""
    ct129, ct200 = night.ct129, night.ct200
    unit, before = "ddtree-gpu1-tree.service", (wrapper(ct129), wrapper(ct200))
    with night.clients(*BODIES, LONG) as load:
        until(lambda: night.load("ct129/gpu1") > 0, "ct129 has requests", deadline=60)
        ct129.log(FELL_OFF)
        ct129.set_gpus(ct129.healthy_gpus.with_gpu(1, fault="lost"))
        status = night.run("status", "ct129", "--json")  # one probe
        done = night.run("migrate", "ct129", "ct200", "--yes", "--json", timeout=300)
        assert done.returncode == 0, done.stderr
        moved = time.time()
        until(lambda: night.load("ct200/gpu1") > 0, "ct200 serves in its place", deadline=60)
        died = ct129.says(f"journalctl -u {unit} -o short-unix -g 'Main process exited' -n 100")
        wrappers = wrapper(ct129), wrapper(ct200)
        ct129.set_gpus(ct129.healthy_gpus)
        ct129.reboot()
        until(
            lambda: "running" in ct129.ssh("systemctl is-system-running --wait").stdout,
            "ct129 has booted",
        )
        assert engines(ct129) == []
        until(lambda: night.load("ct200/gpu1") > 0, "ct200 goes on", deadline=60)

    (host,) = json.loads(status.stdout)["hosts"]
    assert host["health"]["verdict"] == "cordon-host"
    document = json.loads(done.stdout)
    (result,) = document["results"]
    assert (result["target"], result["serves"], result["fenced"]) == ("ct200/gpu1", True, True)
    assert {"plan", "start", "verify"} <= set(document["seconds"])
    service = document["plan"]["moves"][0]["service"]
    assert (service["mode"], service["budget"], service["topk"]) == ("tree", 16, 8)

    dead = float(died.split()[0])
    assert [r for r in load.failed if r.worker != night.first or r.began > dead] == []
    assert [len(texts) for texts in load.texts] == [1] * len(load.texts)
    later = {request.worker for request in load.requests if request.began > moved}
    assert later == {night.spare, night.second}
    assert (wrappers, wrapper(ct200)) == (before, before[1])
    assert night.services() == {
        "ct129/gpu1": ("tree", 16, "moved"),
        "ct200/gpu1": ("tree", 16, "healthy"),
        "ct200/gpu2": ("tree", 16, "healthy"),
    }
    left = {"ct200/gpu1": "ready", "ct200/gpu2": "ready"}
    until(lambda: night.workers() == left, "the router knows the new place only")
    assert "masked" in ct129.ssh(f"systemctl start {unit}").stderr
    refused = night.run("deploy", "ct129", "--mode", "tree")
    assert refused.returncode == 1
    assert "the host is cordoned: its services migrate: the GPU is lost" in refused.stderr
    assert "has moved to ct200/gpu1" in refused.stderr
    assert "was not written by ddtreectl" not in refused.stderr
