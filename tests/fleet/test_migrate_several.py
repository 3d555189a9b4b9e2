"""Two services of one host at once: all moved or named, from wherever an operator was lost.

ct129 serves tree on GPU 1 and linear on GPU 2; ct200 and ct201 have a free slot each.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import engine_wheel
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.lab.waiting import until
from tests.fleet.night import engines
from tests.fleet.operator import Operator

pytestmark = pytest.mark.slow

FULL = os.environ.get("FULL") == "1"
HOME = {"ct129/gpu1": "tree", "ct129/gpu2": "linear"}
AWAY = {"ct200/gpu1": "tree", "ct201/gpu1": "linear"}
SLOT = "{{gpus: [{n}], port: 3000{n}, service: {{start_timeout: 60, stop_timeout: 2}}}}"


class Pair(Operator):
    """An operator of three hosts, one of which serves twice."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__(fleet, folder)
        self.fleet = fleet
        slots = {"ct129": (1, 2), "ct200": (1,), "ct201": (1,)}
        entries = "".join(
            f"  {name}:\n    address: {fleet.hosts[name].address}\n    revert_after: 8\n"
            "    slots:\n" + "".join(f"      gpu{n}: {SLOT.format(n=n)}\n" for n in numbers)
            for name, numbers in slots.items()
        )
        self.write(hosts=f"hosts:\n{entries}")
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder))
        self.env["XDG_STATE_HOME"] = str(folder / "state")
        self.set_option("ConnectTimeout", "2")
        self.set_option("ServerAliveInterval", "1")
        self.source = fleet.hosts["ct129"]

    def serving(self) -> dict[str, str]:
        """Modes of what serves or should, by slot; a service that does not is `mode, health`."""
        document = json.loads(self.run("status", "--json").stdout)
        return {
            f"{s['host']}/{s['slot']}": s["mode"]
            if s["health"] == "healthy"
            else f"{s['mode']}, {s['health']}"
            for s in document["services"]
            if s["health"] not in {"stopped", "moved"}
        }

    def migrate(self, *words: str) -> dict[str, Any]:
        """Migrate, and return the exit code with the results by slot."""
        done = self.run("migrate", "ct129", *words, "--yes", "--json")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return {**found, "code": done.returncode, "said": done.stderr}

    def hurt(self) -> None:
        """Have both GPUs want a reset."""
        for address in ("1b", "2b"):
            self.source.log(f"NVRM: Xid (PCI:0000:{address}:00): 95, pid=7, Uncontained: LTC TAG")

    def whole(self, wanted: dict[str, str]) -> bool:
        """Whether that serves, and nothing else does anywhere."""
        until(lambda: self.serving() == wanted, f"{wanted} serve", deadline=60)
        running = [engines(host) for host in self.fleet.hosts.values()]
        return sum(map(len, running)) == len(wanted)


@pytest.fixture(scope="module")
def whole_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    hosts = [
        HostSpec("ct129", gpus=3, disk="16G"),
        *(HostSpec(name, gpus=2, disk="16G") for name in ("ct200", "ct201")),
    ]
    with Fleet.boot(hosts) as fleet:
        pair = Pair(fleet, tmp_path_factory.mktemp("pair"))
        for gpu, mode in (("1", "tree"), ("2", "linear")):
            done = pair.run("deploy", "ct129", "--gpu", gpu, "--mode", mode, "--budget", "16")
            assert done.returncode == 0, done.stderr
        yield pair
        pair.close()


@pytest.fixture
def pair(whole_pair: Pair) -> Iterator[Pair]:
    assert whole_pair.whole(HOME)
    yield whole_pair
    for host in whole_pair.fleet.hosts.values():
        host.heal()
    assert whole_pair.run("uncordon", "ct129", "ct200", "ct201").returncode == 0
    if whole_pair.serving() != HOME:
        back = whole_pair.run("migrate", "ct129", "--undo", "--yes")
        assert back.returncode == 0, back.stderr


def test_both_move_at_once_and_come_back(pair: Pair) -> None:
    pair.hurt()
    done = pair.migrate()
    assert done["code"] == 0, done["said"]
    titles = [step["title"] for step in done["plan"]["steps"]]
    assert titles[:2] == ["cordon ct129:1", "cordon ct129:2"]
    assert {entry["source"]: entry["target"] for entry in done["results"]} == dict(
        zip(HOME, AWAY, strict=True)
    )
    assert all(entry["fenced"] for entry in done["results"])
    assert pair.whole(AWAY)


def test_the_one_that_finds_no_slot_is_named_and_the_other_moves(pair: Pair) -> None:
    pair.hurt()
    pair.fleet.hosts["ct201"].cut()
    planned = pair.run("migrate", "ct129", "--dry-run")
    assert planned.returncode == 3
    assert "refused: no slot takes ct129/gpu2: " in planned.stdout
    done = pair.migrate()
    assert done["code"] == 3
    told = {entry["source"]: (entry["fenced"], entry["error"]) for entry in done["results"]}
    assert told["ct129/gpu1"] == (True, None)
    assert told["ct129/gpu2"][0] is False
    assert "ct201/gpu1: " in told["ct129/gpu2"][1]
    pair.fleet.hosts["ct201"].heal()
    assert pair.whole({"ct129/gpu2": "linear", "ct200/gpu1": "tree"})
    again = pair.migrate()
    assert again["code"] == 0, again["said"]
    assert pair.whole(AWAY)


WORDS = [
    "cordon ct129:1",
    "cordon ct129:2",
    "note on ct201",
    "build ",
    "start it in ct200",
    "mark ct129/gpu1",
    "fence ct129/gpu1",
    "start it in ct201",
    "mark ct129/gpu2",
    "fence ct129/gpu2",
]
"""How each step is said when it begins; where the environments are there, nothing is built."""

ROTATION = int(os.environ.get("ROTATION", "0"))


@pytest.mark.parametrize("words", WORDS if FULL else [WORDS[(7 + ROTATION) % len(WORDS)]])
def test_an_operator_is_lost_between_two_services(pair: Pair, words: str) -> None:
    if words == "build ":
        pair.fleet.hosts["ct201"].says("rm -rf /var/lib/ddtree/environments")
    pair.hurt()
    process = pair.begin("migrate", "ct129", "--yes")
    assert process.stderr is not None
    assert any(line.startswith(words) for line in process.stderr)
    process.kill()
    process.wait()
    done = pair.migrate()
    assert done["code"] == 0, done["said"]
    assert pair.whole(AWAY)


def test_a_target_that_was_begun_with_is_left_for_another(pair: Pair) -> None:
    """The operator is lost when the first target serves already, and names another one then."""
    process = pair.begin("migrate", "ct129:1", "ct200", "--yes")
    assert process.stderr is not None
    assert any(line.startswith("mark ct129/gpu1") for line in process.stderr)
    process.kill()
    process.wait()
    # Whether it was marked by then is chance: have the note say that it was not.
    pair.fleet.hosts["ct200"].says("mv /var/lib/ddtree/slots/gpu1/arrived.json /root/")
    note = pair.fleet.hosts["ct200"].says("cat /root/arrived.json").replace('"moved"', '"moving"')
    pair.fleet.hosts["ct200"].ssh("cat >/var/lib/ddtree/slots/gpu1/arrived.json", stdin=note)
    pair.source.cut()  # so that it cannot be fenced, and the other target all the same
    done = pair.run("migrate", "ct129:1", "ct201", "--yes")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "end the move to ct200/gpu1 that was begun" in done.stderr
    assert engines(pair.fleet.hosts["ct200"]) == []
    pair.source.heal()
    assert pair.run("migrate", "ct129:1", "--resume", "--yes").returncode == 0
    assert pair.whole({"ct129/gpu2": "linear", "ct201/gpu1": "tree"})
    moves = json.loads(pair.run("status", "--json").stdout)["hosts"]
    assert [host["moves"] for host in moves] == [[], [], []]


def test_two_operators_at_the_same_time(pair: Pair, tmp_path: Path) -> None:
    one = pair.begin("migrate", "ct129:1", "ct200", "--yes")
    pair.env["XDG_STATE_HOME"], kept = str(tmp_path), pair.env["XDG_STATE_HOME"]
    two = pair.begin("migrate", "ct129:1", "ct201", "--yes")
    pair.env["XDG_STATE_HOME"] = kept
    said = [process.communicate(timeout=240) for process in (one, two)]
    assert "Traceback" not in str(said)
    last = pair.run("migrate", "ct129:1", "--yes")
    assert last.returncode == 0, (said, last.stdout + last.stderr)
    places = [{"ct129/gpu2": "linear", name: "tree"} for name in ("ct200/gpu1", "ct201/gpu1")]
    until(lambda: pair.serving() in places, f"one serves: {said}", deadline=60)
    assert pair.whole(pair.serving())
