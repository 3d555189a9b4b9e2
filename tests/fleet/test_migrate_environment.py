"""The target has no environment: it is built from a wheelhouse, taken from a host, or refused.

ct129 serves; ct200 is to take it; ct201 has the same environment and no free slot.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ctl.env import wheels
from tests.fleet import wheelhouse
from tests.fleet.engine_wheel import ENGINE
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.night import TREE16, Night, engines

pytestmark = pytest.mark.slow

ENVIRONMENTS = "/var/lib/ddtree/environments"
CLEAR = f"rm -rf {ENVIRONMENTS} /var/lib/ddtree/provisioned.json"


class Builder(Night):
    """An operator whose hosts get their environments from a folder of wheels."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__(fleet, folder)
        self.house = folder / "wheelhouse"
        self.house.mkdir()
        python = f"cp{wheelhouse.python_version().replace('.', '')}"
        wheels.torch(self.house, "cu130", python=python)
        wheels.cuda_runtime(self.house, 13)
        engine = wheels.wheel(
            folder,
            "ddtree-engine",
            "0.1.0",
            {"ddtree_engine/__init__.py": "", "ddtree_engine/main.py": ENGINE.read_text()},
            requires=["torch>=2.6"],
            scripts={"ddtree-engine": "ddtree_engine.main:main"},
        )
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine)
        slot = "gpu1: {gpus: [1], port: 30001, service: {start_timeout: 60, stop_timeout: 2}}"
        other = f"  ct201:\n    address: {fleet.hosts['ct201'].address}\n    slots:\n      {slot}\n"
        text = f"environment: {{wheelhouse: {self.house}}}\n{self.inventory.read_text()}{other}"
        self.inventory.write_text(text)
        self.other = fleet.hosts["ct201"]

    def built(self) -> dict[str, object]:
        """What the environment of the target was made from, by its marker."""
        found: dict[str, object] = json.loads(
            self.target.says(f"cat {ENVIRONMENTS}/*/environment.json")
        )
        return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    with Fleet.boot(
        [HostSpec(name, gpus=2, disk="16G") for name in ("ct129", "ct200", "ct201")]
    ) as fleet:
        builder = Builder(fleet, tmp_path_factory.mktemp("builder"))
        done = builder.run("deploy", "ct129", "--mode", "tree", "--budget", "16")
        assert done.returncode == 0, done.stderr
        done = builder.run("provision", "ct201", "--wheelhouse", str(builder.house))
        assert done.returncode == 0, done.stderr
        builder.run("cordon", "ct201", "--reason", "no slot of it is free")
        yield builder
        builder.close()


@pytest.fixture
def builder(whole: Builder) -> Iterator[Builder]:
    whole.target.says(CLEAR)
    house, away = whole.house, whole.house.with_name("away")
    yield whole
    if away.exists():
        away.rename(house)
    whole.settle()


def without_wheels(builder: Builder) -> None:
    builder.house.rename(builder.house.with_name("away"))


def titles(document: str) -> list[str]:
    return [step["title"] for step in json.loads(document)["plan"]["steps"]]


def test_from_the_wheelhouse(builder: Builder) -> None:
    done = builder.migrate(builder.target.name, "--json")
    assert done.returncode == 0, done.stderr
    assert f"build environment {builder.built()['name']} on" in " ".join(titles(done.stdout))
    assert "bring" in done.stderr
    assert builder.moved()


def test_from_the_source_where_the_wheels_are_not_here(builder: Builder) -> None:
    without_wheels(builder)
    done = builder.migrate(builder.target.name, "--json")
    assert done.returncode == 0, done.stderr
    (title,) = [title for title in titles(done.stdout) if "environment" in title]
    assert title.endswith(f"over from {builder.source.name} to {builder.target.name}")
    assert builder.built()["taken_from"] == builder.source.name
    assert builder.moved()


def test_from_another_host_where_the_source_is_gone(builder: Builder) -> None:
    assert builder.settled() == builder.source.name  # which this machine remembers
    without_wheels(builder)
    builder.source.cut()
    done = builder.migrate(builder.target.name)
    assert done.returncode == 3, done.stderr
    assert builder.built()["taken_from"] == "ct201"
    builder.source.heal()
    assert builder.migrate("--resume").returncode == 0
    assert builder.moved()


def test_from_the_source_where_the_build_fails(builder: Builder) -> None:
    """A wheel is missing, which shows when the others are installed."""
    (runtime,) = builder.house.glob("nvidia*")
    kept = shutil.move(runtime, builder.house.parent)
    done = builder.migrate(builder.target.name)
    shutil.move(kept, runtime)
    assert done.returncode == 0, done.stderr
    assert f"taking the environment of {builder.source.name} over instead" in done.stderr
    assert builder.built()["taken_from"] == builder.source.name
    assert builder.moved()


def test_every_mismatch_is_named_before_anything_stops(builder: Builder) -> None:
    without_wheels(builder)
    gpus = builder.target.healthy_gpus.with_gpu(1, compute_cap="7.0")
    builder.target.set_gpus(replace(gpus, driver="570.86.10"))
    done = builder.migrate(builder.target.name)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert f"the wheelhouse `{builder.house}` is no folder" in said
    for name in (builder.source.name, "ct201"):
        assert f"the environment of {name} does not fit: cu130: it needs driver 580" in said
    assert "architectures: torch has sm_80, sm_90, sm_100, sm_120, and the GPUs of" in said
    assert engines(builder.source)
    assert builder.status(builder.source.name)["hosts"][0]["health"]["cordons"] == []
    assert builder.serving() == {builder.source.name: TREE16}
