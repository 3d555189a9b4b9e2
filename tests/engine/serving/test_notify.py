"""sd_notify on real Unix sockets."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_engine.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The name for $NOTIFY_SOCKET, and the service manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.settimeout(5)
        if request.param == "path":
            name = str(tmp_path / "notify")
            end.bind(name)
        else:
            name = f"@ddtree-test-{os.getpid()}"
            end.bind("\0" + name[1:])
        yield name, end


def test_messages(manager: tuple[str, socket.socket]) -> None:
    name, end = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.status("loading")
    notifier.ready("serving")
    notifier.stopping("draining")
    messages = [end.recv(1000).decode() for _ in range(3)]
    ready = f"READY=1\nMAINPID={os.getpid()}\nSTATUS=serving"
    assert messages == ["STATUS=loading", ready, "STOPPING=1\nSTATUS=draining"]


def test_a_manager_that_closed_its_socket_after_the_start_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(name)
    with caplog.at_level(logging.INFO):
        Notifier({"NOTIFY_SOCKET": name}).stopping("draining")
    assert caplog.records == []


def test_the_watchdog_is_fed_at_half_its_time(manager: tuple[str, socket.socket]) -> None:
    name, end = manager
    hour = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(3600 * 10**6)}
    notifier = Notifier(hour)
    assert notifier.watchdog_seconds == 1800
    for _ in range(3):
        notifier.feed_watchdog()
    notifier.status("after")
    assert [end.recv(1000) for _ in range(2)] == [b"WATCHDOG=1", b"STATUS=after"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
def test_a_watchdog_that_is_not_ours(
    manager: tuple[str, socket.socket], environment: dict[str, str]
) -> None:
    name, end = manager
    notifier = Notifier({"NOTIFY_SOCKET": name, **environment})
    assert notifier.watchdog_seconds is None
    notifier.feed_watchdog()
    notifier.status("nothing before")
    assert end.recv(1000) == b"STATUS=nothing before"


def test_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": "relative/path"}).ready("x")
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")
    assert "can't be told" in caplog.text
