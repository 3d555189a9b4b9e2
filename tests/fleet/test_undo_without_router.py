"""An undo that cannot reach the router's host: the source is fenced again, the target serves on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.behind_router import BehindRouter
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.operator import Operator

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

ROUTER = "router"
UNIT = "ddtree-gpu0-tree"


@pytest.fixture
def operator(router_wheelhouse: Path, tmp_path: Path) -> Iterator[BehindRouter]:
    """One who has moved the service of h1 to h2, behind a router on a third host."""
    specs = [HostSpec(name, gpus=1, disk="16G") for name in ("h1", "h2", ROUTER)]
    with Fleet.boot(specs) as fleet:
        found = BehindRouter(fleet, tmp_path, ("h1", "h2"), ROUTER, revert_after=60)
        done(found, "deploy", "h1", "--mode", "tree")
        done(found, "router", "deploy", "--wheelhouse", str(router_wheelhouse))
        done(found, "migrate", "h1", "h2", "--yes")
        yield found
        found.close()


def done(operator: Operator, *words: str) -> None:
    ran = operator.run(*words)
    assert ran.returncode == 0, ran.stderr + ran.stdout


def running(operator: BehindRouter) -> list[str]:
    """The hosts whose service is healthy."""
    told = [json.loads(operator.run("status", name, "--json").stdout) for name in ("h1", "h2")]
    return [s["host"] for host in told for s in host["services"] if s["health"] == "healthy"]


def test_the_source_is_fenced_again_and_a_later_undo_succeeds(operator: BehindRouter) -> None:
    operator.at.cut()
    failed = operator.run("migrate", "h1", "--undo", "--yes")
    assert failed.returncode == 4, failed.stderr
    assert running(operator) == ["h2"]
    unit = operator.fleet.hosts["h1"].root / f"etc/systemd/system/{UNIT}.service"
    assert str(unit.readlink()) == "/dev/null"
    operator.at.heal()
    done(operator, "migrate", "h1", "--undo", "--yes")
    assert running(operator) == ["h1"]
    operator.await_ready("h1")
