"""The guard that a unit runs before it starts: only a clear word of the router keeps it down."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ddtreectl import bundle
from ddtreectl.inventory.workers import with_moved
from ddtreectl.units import guard
from tests.ctl.machine import free_port

STARTS, DOES_NOT = 0, 1


@contextmanager
def router(status: int, body: str) -> Iterator[str]:
    """Something that answers every request with that, and its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def condition(url: str, *, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
    """Run what the unit of h1/gpu0 has as its ExecCondition, with less patience."""
    words = guard.argv(python, str(bundle.templates()), url, "h1/gpu0")
    words[2] = words[2].replace('"$3"', '"$3" 0')
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def workers(*names: str) -> str:
    entries = [{"url": "http://x", "labels": {"smg.ai/discovery-id": name}} for name in names]
    return json.dumps({"workers": [*entries, {"url": "http://of-somebody-else"}]})


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        ((), True),
        (("h1/gpu0", "h2/gpu0"), True),
        (("h2/gpu0 for h1/gpu1",), True),
        ((with_moved("h2/gpu0", ["h1/gpu0"]),), False),
        (("h3/gpu0", with_moved("h2/gpu0", ["h9/gpu1", "h1/gpu0"])), False),
    ],
)
def test_a_slot_that_another_one_stands_for_does_not_start(
    names: tuple[str, ...], starts: bool
) -> None:
    with router(200, workers(*names)) as url:
        done = condition(url)
    assert done.returncode == (STARTS if starts else DOES_NOT)
    assert ("h1/gpu0 was moved: h2/gpu0 stands for it" in done.stdout) is not starts


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, "{}"),
        (200, "no JSON"),
        (200, "[]"),
        (200, '{"workers": 3}'),
        (200, '{"workers": [3]}'),
    ],
)
def test_a_router_that_does_not_tell_keeps_nothing_down(status: int, body: str) -> None:
    with router(status, body) as url:
        done = condition(url)
    assert done.returncode == STARTS
    assert "does not tell" in done.stdout


def test_a_router_that_is_down_keeps_nothing_down() -> None:
    done = condition(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == STARTS
    assert "refused" in done.stdout


def test_a_missing_interpreter_keeps_nothing_down(tmp_path: Path) -> None:
    moved = workers("h2/gpu0 for h1/gpu0")
    with router(200, moved) as url:
        assert condition(url, python=str(tmp_path / "python")).returncode == STARTS
