"""The main job with nothing stood in for: a built environment, the engine, the bundled model."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ddtreectl.env.wheel import VARIABLE
from tests.ctl.conftest import new_machine
from tests.ctl.machine import REPOSITORY, Machine

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where environments are built, once for all tests of the session."""
    return tmp_path_factory.mktemp("environments")


@pytest.fixture
def real_machine(tmp_path: Path, environments: Path) -> Iterator[Machine]:
    machine = new_machine(tmp_path)
    machine.environments = environments
    machine.start_timeout = 120
    machine.write_inventory()
    yield machine
    machine.close()


def test_tree_serves_swaps_to_linear_and_comes_back(real_machine: Machine) -> None:
    machine = real_machine
    deployed = machine.run("deploy", "local", "--mode", "tree", "--budget", "16", timeout=500)
    assert deployed.returncode == 0, deployed.stderr
    service = machine.service()
    wanted = {"mode": "tree", "budget": 16, "port": machine.port, "health": "healthy"}
    assert {key: service[key] for key in wanted} == wanted
    assert service["generation"] == 1
    assert isinstance(service["acceptance_length"], float)
    assert isinstance(service["tokens_per_second"], float)

    broken = machine.deploy("linear", *machine.model("empty"))
    assert broken.returncode == 1
    assert "cannot be served" in broken.stderr
    assert machine.service()["pid"] == service["pid"]

    swapped = machine.deploy("linear")
    assert swapped.returncode == 0, swapped.stderr
    assert machine.service()["mode"] == "linear"

    back = machine.run("rollback", "local")
    assert back.returncode == 0, back.stderr
    service = machine.service()
    assert (service["mode"], service["budget"], service["generation"]) == ("tree", 16, 1)

    chooses = machine.deploy("tree", "--budget", "auto")
    assert chooses.returncode == 0, chooses.stderr
    service = machine.service()
    assert (service["mode"], service["health"]) == ("tree", "healthy")
    assert service["budget"] in (3, 7, 15, 31, 63, 127), "what is in use, and not `auto`"
    assert machine.run("stop").returncode == 0
    assert machine.processes_of_slot() == []


def test_a_build_that_was_killed_does_not_look_finished(
    real_machine: Machine, tmp_path: Path
) -> None:
    machine = real_machine
    machine.environments = tmp_path / "environments"
    machine.write_inventory()
    operator = machine.begin("deploy", "local", "--mode", "tree")
    begun = machine.environments
    while not list(begun.glob("engine-*/pyvenv.cfg")):
        assert operator.poll() is None
    operator.kill()
    operator.wait()
    assert list(begun.glob("engine-*/environment.json")) == []
    planned = machine.deploy("tree", "--dry-run", "--json")
    steps = json.loads(planned.stdout)["plan"]["steps"]
    assert steps[0]["action"] == "build-environment"
    name = json.loads(planned.stdout)["plan"]["environment"]
    # What still runs for the build holds its lock, and the next build waits for that.
    lock = machine.environments / f"{name}.lock"
    held = subprocess.run(["flock", "-n", str(lock), "true"], check=False).returncode != 0
    assert held == bool(processes_with(f"{machine.environments}/{name}/"))
    assert machine.status()["services"] == []


def processes_with(argument: str) -> list[str]:
    """The command lines that hold `argument`, of processes that build an environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().decode(errors="replace")
            if argument in line and ("pip" in line or "venv" in line):
                found.append(line)
    return found


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with ddtreectl installed from its wheel; its interpreter."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = folder.glob("ddtreectl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "ddtreectl/_bundle/templates/systemd/engine.service.j2" in names
    assert any(name.startswith("ddtreectl/_bundle/wheels/ddtree_engine-") for name in names)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    constraints = str(REPOSITORY / "constraints.txt")
    pip = [str(python), "-m", "pip", "install", "-q", "-c", constraints, str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    return python


def test_an_installed_ddtreectl_needs_no_checkout(
    installed: Path, real_machine: Machine, tmp_path: Path
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(installed.parent / "ddtreectl"), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    rendered = run("render", "local", "--mode", "tree", "--budget", "16")
    assert rendered.returncode == 0, rendered.stderr
    assert " --mode tree --budget 16 " in rendered.stdout
    planned = run("deploy", "local", "--mode", "tree", "--dry-run")
    assert "check model and drafter" in planned.stdout, planned.stderr
    assert str(REPOSITORY) not in rendered.stdout + planned.stdout
    fleet = installed.parents[1].rglob("_bundle/inventories/fleet.yaml")
    assert run("inventory", "check", str(next(fleet))).returncode == 0

    inventory = str(real_machine.inventory)
    deployed = run("--inventory", inventory, "deploy", "local", "--mode", "tree")
    assert deployed.returncode == 0, deployed.stderr
    assert real_machine.service()["health"] == "healthy"
