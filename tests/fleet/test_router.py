"""The real router before two services on real systemd hosts, under the load of real clients.

The tests share hosts and hand them on as they found them: both services in the router, mode tree.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.fleet import engine_wheel
from tests.fleet.clients import Load, clients
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PORT = 8000
UNIT = "ddtree-router.service"
LISTS = Path("var/lib/ddtree/router")


class Balanced(Operator):
    """An operator of two hosts with a slot each, and of the router on the first."""

    def __init__(self, fleet: Fleet, folder: Path, wheels: Path) -> None:
        super().__init__(fleet, folder)
        self.wheels = wheels
        self.h1, self.h2 = (fleet.hosts[name] for name in ("h1", "h2"))
        self.url = f"http://{self.h1.address}:{PORT}"
        entries = "".join(
            f"""  {name}:
    address: {fleet.hosts[name].address}
    revert_after: 60
    slots:
      gpu0:
        gpus: [0]
        port: 30000
        address: 0.0.0.0
        service: {{start_timeout: 60, stop_timeout: 2}}
"""
            for name in ("h1", "h2")
        )
        router = (
            f"router: {{host: h1, address: {self.h1.address}, port: {PORT}, drain_timeout: 20}}\n"
        )
        self.write(hosts=f"{router}hosts:\n{entries}")
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder))
        self.set_option("ConnectTimeout", "2")

    def done(self, *words: str) -> str:
        """Run ddtreectl, which must succeed; what it has told on the way."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stderr + done.stdout

    def workers(self) -> dict[str, str]:
        """The router's word on each worker."""
        router = json.loads(self.run("router", "status", "--json").stdout)
        return {worker["name"]: worker["status"] for worker in router["workers"]}

    def whole(self) -> bool:
        """Whether both serve, and are in the router."""
        found = json.loads(self.run("status", "--json").stdout)
        services = [(s["mode"], s["health"]) for s in found["services"]]
        workers = {w["name"]: w["status"] for w in found["router"]["workers"]}
        both = {"h1/gpu0": "ready", "h2/gpu0": "ready"}
        return (workers, services) == (both, [("tree", "healthy")] * 2)

    def assert_as_found(self) -> None:
        until(self.whole, "both serve, and are in the router")

    def clients(self, *words: str) -> AbstractContextManager[Load]:
        """Four clients of the router, whose requests take 0.4 to 1.2 s."""
        bodies: list[dict[str, object]] = [
            {"model": "contract", "prompt": "def f():", "delay": 0.4 * times} for times in (1, 2, 3)
        ]
        return clients(self.fleet, self.url, bodies, *words)


@pytest.fixture(scope="module")
def balanced(
    router_wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Balanced]:
    """Two hosts that serve, behind a router on the first."""
    with Fleet.boot([HostSpec(name, gpus=1, disk="16G") for name in ("h1", "h2")]) as fleet:
        operator = Balanced(fleet, tmp_path_factory.mktemp("operator"), router_wheelhouse)
        operator.done("deploy", "h1", "h2", "--mode", "tree", "--canary", "0")
        said = operator.done("router", "deploy", "--wheelhouse", str(router_wheelhouse))
        assert "put in: h1/gpu0, h2/gpu0" in said
        for host in (operator.h1, operator.h2):
            host.says(
                "mkdir /srv/exits && cd /srv/exits && echo '{}' >config.json && echo exit >faults"
            )
        yield operator
        operator.close()


@pytest.fixture
def operator(balanced: Balanced) -> Balanced:
    for host in (balanced.h1, balanced.h2):
        if host.hurt:  # a test has failed; the next is not to
            host.heal()
            balanced.assert_as_found()
    return balanced


def test_deployed(operator: Balanced) -> None:
    operator.assert_as_found()
    assert operator.h1.says(f"systemctl is-enabled {UNIT}").strip() == "enabled"
    again = operator.done("router", "deploy", "--wheelhouse", str(operator.wheels))
    assert "runs already" in again
    security = operator.h1.says(f"systemd-analyze security --no-pager {UNIT} | tail -1")
    assert float(security.split("level for")[1].split(":")[1].split()[0]) <= 4.0, security


def test_a_failed_deploy_loses_no_request(operator: Balanced) -> None:
    with operator.clients() as told:
        failed = operator.run(
            *(
                "deploy",
                "h2",
                "--mode",
                "linear",
                "--model",
                "/srv/exits",
                "--drafter",
                "/srv/exits",
            )
        )
        assert failed.returncode == 6, failed.stderr
        assert "✓ put h2/gpu0 back into the router" in failed.stderr
    assert told.failed == []
    assert told.requests
    operator.assert_as_found()


def test_a_router_that_is_restarted_in_the_middle(operator: Balanced) -> None:
    with operator.clients("--knows-restarts") as told:
        with operator.h2.hold("systemctl", "stop ddtree-gpu0-tree") as hold:
            roll = operator.begin("deploy", "h2", "--mode", "tree", "--force")
            hold.reached(60)
            operator.h1.says(f"systemctl restart {UNIT}")
        _, said = roll.communicate(timeout=60)
        assert roll.returncode == 0, said
    assert told.failed == []
    assert told.requests
    operator.assert_as_found()


def test_a_router_that_is_down_blocks_nothing(operator: Balanced) -> None:
    operator.done("router", "stop")
    assert operator.run("router", "status").returncode == 1
    said = operator.done("deploy", "h2", "--mode", "tree", "--force")
    assert "the router is down" in said
    assert "gets requests when it is up again" in said
    assert json.loads((operator.h1.root / LISTS / "slots.json").read_text())["workers"].keys() == {
        "h1/gpu0",
        "h2/gpu0",
    }
    operator.done("router", "deploy", "--wheelhouse", str(operator.wheels))
    operator.assert_as_found()


def test_a_router_whose_host_is_cut_off_blocks_nothing(operator: Balanced) -> None:
    operator.h1.cut()
    said = operator.done("deploy", "h2", "--mode", "tree", "--force")
    assert "the router cannot be reached" in said
    assert "`ddtreectl router sync` puts in what serves" in said
    assert operator.run("router", "status").returncode == 4
    operator.h1.heal()
    operator.assert_as_found()


def test_a_service_on_its_own_loopback_is_not_put_in(operator: Balanced) -> None:
    operator.done("stop", "h2")
    wanted = operator.inventory.read_text()
    first, _, rest = wanted.rpartition("address: 0.0.0.0")
    operator.inventory.write_text(f"{first}behind_router: false{rest}")  # loopback by default
    operator.done("deploy", "h2", "--mode", "tree")
    operator.inventory.write_text(wanted)
    synced = operator.run("router", "sync")
    assert synced.returncode == 3, synced.stderr
    assert "h2/gpu0: it listens on 127.0.0.1 alone" in synced.stdout
    assert (
        "h2/gpu0"
        not in json.loads((operator.h1.root / LISTS / "slots.json").read_text())["workers"]
    )
    operator.done("deploy", "h2", "--mode", "tree")
    refused = operator.run("rollback", "h2")
    assert refused.returncode == 1, refused.stderr
    assert "the router cannot reach this service" in refused.stderr
    operator.assert_as_found()


def test_a_stopped_slot_is_out_and_a_deploy_puts_it_in(operator: Balanced) -> None:
    with operator.clients() as told:
        operator.done("stop", "h2")
        assert operator.workers().get("h2/gpu0") in {None, "draining"}
        assert operator.done("router", "sync").count("as before") == 1
        operator.done("deploy", "h2", "--mode", "tree")
    assert told.failed == []
    assert told.requests
    operator.assert_as_found()


def test_a_healthy_service_moves_and_no_request_is_lost(operator: Balanced) -> None:
    """There is no other: its place is taken before it is left."""
    operator.done("stop", "h2")
    with operator.clients() as told:
        operator.done("migrate", "h1", "h2", "--yes")
    assert told.failed == []
    assert told.requests
    # A worker that is out is `draining` until the router has forgotten it.
    until(lambda: operator.workers() == {"h2/gpu0": "ready"}, "the router knows the new place only")
    with operator.clients() as told:
        operator.done("migrate", "h1", "--undo", "--yes")
    assert told.failed == []
    assert told.requests
    until(lambda: operator.workers() == {"h1/gpu0": "ready"}, "the router knows the old place only")
    assert not list((operator.h1.root / "run/systemd/system").glob("ddtree-*.d/*"))
    operator.done("deploy", "h2", "--mode", "tree")
    operator.assert_as_found()


def test_of_two_operators_at_once_one_waits_for_the_worker_of_the_other(operator: Balanced) -> None:
    """Both have seen two workers; the second takes its own out before the first does."""
    swap = ("--mode", "tree", "--force")
    with operator.clients() as told:
        with operator.h2.hold("systemctl", "stop ddtree-gpu0-tree") as stop:
            with operator.h1.hold("python3", "/router remove h1/gpu0") as removal:
                first = operator.begin("deploy", "h1", *swap)
                removal.reached(60)
                second = operator.begin("deploy", "h2", *swap)
                stop.reached(60)
                with operator.h1.hold("python3", "/router show") as look:
                    removal.release()
                    look.reached(60)
            assert operator.workers()["h1/gpu0"] == "ready"
        for swapping in (first, second):
            _, said = swapping.communicate(timeout=120)
            assert swapping.returncode == 0, said
    assert told.failed == []
    assert told.requests
    operator.assert_as_found()


def test_what_is_missing_is_put_in_at_the_next_contact(operator: Balanced) -> None:
    lists = operator.h1.root / LISTS
    kept = (lists / "slots.json").read_text()
    gone = json.loads(kept)
    del gone["workers"]["h2/gpu0"]
    gone["workers"]["h9/gpu0"] = "http://10.77.0.99:30000"
    (lists / "slots.json").write_text(json.dumps(gone))
    (lists / "workers.json").write_text('{"version": 1, "workers": []}')
    said = operator.done("deploy", "h2", "--mode", "tree")
    assert "put h2/gpu0 into the router" in said
    assert "stop ddtree" not in said
    assert "taken out: h9/gpu0" in operator.done("router", "sync")
    operator.assert_as_found()


def test_a_host_that_comes_back_does_not_serve_what_was_moved_from_it(operator: Balanced) -> None:
    """As a migration leaves it: h1/gpu0 stands for h2/gpu0 as well, and h2 was down meanwhile."""
    lists, unit = operator.h1.root / LISTS, "ddtree-gpu0-tree.service"
    operator.h2.kill()
    slots = json.loads((lists / "slots.json").read_text())
    url = slots["workers"]["h1/gpu0"]
    slots = {"workers": {"h1/gpu0": url}, "moved": {"h2/gpu0": "h1/gpu0"}}
    (lists / "slots.json").write_text(json.dumps(slots))
    entry = {"id": "h1/gpu0 for h2/gpu0", "url": url}
    (lists / "new").write_text(json.dumps({"version": 1, "workers": [entry]}))
    (lists / "new").replace(lists / "workers.json")
    until(lambda: operator.workers() == {"h1/gpu0": "ready"}, "one worker stands for both")
    operator.h2.start()

    def result() -> str:
        return operator.h2.says(f"systemctl show -p Result --value {unit}").strip()

    until(lambda: result() == "exec-condition", "the guard has spoken")
    assert operator.h2.says(f"systemctl is-active {unit} || true").strip() == "inactive"
    assert "h2/gpu0 was moved: h1/gpu0 stands for it" in operator.h2.says(f"journalctl -u {unit}")
    (_, service) = json.loads(operator.run("status", "--json").stdout)["services"]
    assert (service["health"], service["moved_to"]) == ("moved", "h1/gpu0")
    refused = operator.run("deploy", "h2", "--mode", "tree")
    assert refused.returncode == 1
    assert "was moved to `h1/gpu0`" in refused.stderr
    assert "moved elsewhere: h2/gpu0" in operator.done("router", "sync")
    assert "h1/gpu0 stands for it no more" in operator.done("router", "forget", "h2/gpu0")
    said = operator.done("deploy", "h2", "--mode", "tree")
    assert "put h2/gpu0 into the router" in said
    operator.assert_as_found()
