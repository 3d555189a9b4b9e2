"""`ddtree-engine serve` as a process of its own on a free port of loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any

import httpx

DEADLINE = 60.0


def wait_for(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """Poll until `condition` is true; return its value."""
    end = monotonic() + deadline
    while not (value := condition()):
        assert monotonic() < end, f"waited {deadline:g} s in vain for {what}"
        sleep(0.02)
    return value


class ServerProcess:
    """A server; stderr goes to a file that tests can read while it runs."""

    def __init__(
        self,
        *options: str,
        environment: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "ddtree_engine"),
    ) -> None:
        # A connection a request: one kept alive could be closed by the server in that moment.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(timeout=DEADLINE, limits=limits)
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "stderr"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, "serve", "--port", "0", *options],
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            )

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._client.close()
        self._folder.cleanup()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        ready = next(line for line in self.log.splitlines() if "INFO ready:" in line)
        return int(ready.rpartition("port=")[2])

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return "INFO ready:" in self.log

        wait_for(ready, "the server to be ready")

    def wait(self) -> int:
        """Exit code, once the process has ended."""
        return self.process.wait(DEADLINE)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._client.get(self.url + path, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self._client.post(self.url + path, json=body, **options)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", {"prompt": prompt, **fields})
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def start(self, body: dict[str, Any], **options: Any) -> tuple[threading.Thread, list[Any]]:
        """Send a completion in a thread; its answer, or its error, is put into the list."""
        found: list[Any] = []

        def send() -> None:
            try:
                found.append(self.post("/v1/completions", body, **options))
            except httpx.HTTPError as error:
                found.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        return thread, found

    def gauge(self, name: str) -> float:
        lines = self.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])
