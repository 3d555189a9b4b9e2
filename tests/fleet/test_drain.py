"""Hosts that are cordoned, drained and uncordoned together: none holds up the others."""

import json
from collections.abc import Iterator

import pytest

from tests.fleet.deployer import Deployer, serving_hosts
from tests.fleet.lab.waiting import until

pytestmark = pytest.mark.slow

NAMES = ("h1", "h2", "h3")
TREE = "ddtree-gpu0-tree.service"


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Deployer]]:
    """Three hosts that serve; the first operator has all of them, and the third is protected."""
    with serving_hosts(tmp_path_factory, 3, revert_after=8) as found:
        first = found[0]
        first.write_hosts([operator.host.address for operator in found])
        before, _, last = first.inventory.read_text().rpartition("      gpu0:\n")
        first.inventory.write_text(f"{before}      gpu0:\n        protected: true\n{last}")
        yield found


def states(said: str, of: str) -> dict[str, str]:
    return {entry["host"]: entry["state"] for entry in json.loads(said)[of]}


def test_many_hosts_at_a_time(operators: list[Deployer]) -> None:
    everybody = operators[0]
    with operators[0].host.hold("systemctl", f"stop {TREE}") as hold:
        drain = everybody.begin("drain", *NAMES, "--reason", "new racks", "--json")
        hold.reached()
        stopped = f"systemctl is-active {TREE} || true"
        h2 = operators[1].host
        until(lambda: h2.says(stopped) == "inactive", "h2 is emptied while h1 is held", 60.0)
    out, said = drain.communicate(timeout=90)
    assert drain.returncode == 0, said
    assert states(out, "slots") == {"h1": "stopped", "h2": "stopped", "h3": "protected"}
    assert [entry["target"] for entry in json.loads(out)["cordoned"]] == list(NAMES)
    assert operators[2].service()["health"] == "healthy"

    h2.cut()
    ended = everybody.run("uncordon", *NAMES, "--json")
    assert ended.returncode == 3
    told = json.loads(ended.stdout)
    assert [entry["target"] for entry in told["uncordoned"]] == ["h1", "h3"]
    assert [(entry["target"], entry["unreachable"]) for entry in told["failed"]] == [("h2", True)]
    away = everybody.run("drain", "h2", "h3:0", "--json")
    assert away.returncode == 3
    assert states(away.stdout, "slots") == {"h3": "stopped", "h2": "unreachable"}
