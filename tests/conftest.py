"""What holds for every test."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine, not of the code: speed is for benchmarks.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process more than cores: many tests wait for a service while others could compute."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C reaches the processes of tests, which a shell's background job would not pass on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What ddtreectl keeps for its operator stays out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
