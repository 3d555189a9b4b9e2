"""Fixtures for tests of ddtreectl."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtreectl.env.wheel import VARIABLE, engine_wheel
from tests.ctl.machine import Machine, free_port


@pytest.fixture(scope="session", autouse=True)
def one_engine_wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build the engine's wheel once, so that all tests and the processes they start agree on it."""
    wheel = engine_wheel()
    path = tmp_path_factory.mktemp("wheel") / wheel.name
    path.write_bytes(wheel.content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(path))
        yield


def new_machine(folder: Path) -> Machine:
    if os.geteuid() != 0:
        pytest.skip("starts services through docker-systemctl-replacement, as root")
    (folder / "host").mkdir(parents=True)
    machine = Machine(folder / "host", free_port(), folder / "inventory.yaml")
    machine.write_inventory()
    return machine


@pytest.fixture
def bare_machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine on which nothing was ever deployed and no environment is built."""
    machine = new_machine(tmp_path)
    yield machine
    machine.close()


@pytest.fixture
def machine(bare_machine: Machine) -> Machine:
    """A machine whose environment is the stand-in engine."""
    bare_machine.install_contract_engine()
    return bare_machine


@pytest.fixture(scope="session")
def kept_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Machine]]:
    """Machines that tests hand on to each other."""
    machines: list[Machine] = []
    yield machines
    for machine in machines:
        machine.close()


@pytest.fixture
def serving(kept_machines: list[Machine], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine that serves tree with budget 16, as generation 1.

    Tests of failed deploys end as they began, so that they can share a machine; where one did not,
    the next gets a new one.
    """
    if kept_machines:
        machine = kept_machines[-1]
        machine.start_timeout = Machine.start_timeout
        machine.write_inventory()
        services = machine.status()["services"]
        if isinstance(services, list) and (services[0]["generation"], services[0]["health"]) == (
            1,
            "healthy",
        ):
            return machine
    machine = new_machine(tmp_path_factory.mktemp("machine"))
    kept_machines.append(machine)
    machine.install_contract_engine()
    done = machine.deploy("tree", "--budget", "16")
    assert done.returncode == 0, done.stderr
    return machine
