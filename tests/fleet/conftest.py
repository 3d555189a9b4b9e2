"""Fixtures: hosts with their own systemd and sshd, see `tests.fleet.lab`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet import router_wheels
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.packages import unavailable

FOLDER = Path(__file__).parent
LONGEST = ("test_swap_faults.py", "test_gpu_failure.py", "test_migrate.py", "test_router.py")
"""Files that begin first: whatever began last would be waited for alone."""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.fleet)
    first = {FOLDER / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


@pytest.fixture(scope="session", autouse=True)
def lab_is_possible() -> None:
    if reason := unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def router_wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of the router, downloaded once."""
    try:
        return router_wheels.download(tmp_path_factory.mktemp("router-wheels"))
    except router_wheels.UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def booted_fleet() -> Iterator[Fleet]:
    """Three hosts with two GPUs each, for the whole session."""
    with Fleet.boot(3) as fleet:
        yield fleet


@pytest.fixture
def fleet(booted_fleet: Fleet) -> Iterator[Fleet]:
    """Three hosts that are up and healthy; their disks keep what earlier tests left."""
    yield booted_fleet
    booted_fleet.heal()
    for host in booted_fleet.hosts.values():
        if host.logged:
            host.reboot()


@pytest.fixture
def new_fleet(fleet: Fleet) -> Fleet:
    """Three hosts on which nothing was ever done."""
    for host in fleet.hosts.values():
        host.renew()
    return fleet
