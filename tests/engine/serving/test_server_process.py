"""The life of a server process: start, keys, queue, draining, failures."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import openai
import pytest

from tests.engine.serving.server_process import DEADLINE, ServerProcess, wait_for

pytestmark = pytest.mark.e2e

ENDLESS = {"prompt": "a", "max_tokens": 19_000, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def options(checkpoint: tuple[Path, Path]) -> list[str]:
    target, drafter = checkpoint
    models = ["--model", str(target), "--drafter", str(drafter)]
    return [*models, "--max-running", "1", "--max-context", "20000"]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of $NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(DEADLINE)
        yield end


def received(manager: socket.socket) -> list[bytes]:
    """Messages that have arrived."""
    messages = []
    manager.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            messages.append(manager.recv(1000))
    return messages


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "ddtree_engine", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_keys_queue_notifications_and_draining(
    options: list[str], manager: socket.socket, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"}
    more = ["--max-queue", "1", "--api-key-file", str(keys), "--served-model-name", "m"]
    with ServerProcess(*options, *more, environment=environment) as server:
        messages: list[str] = []
        while not messages or not messages[-1].startswith("READY=1"):
            messages.append(manager.recv(1000).decode())
        assert messages[:-1] == ["STATUS=loading the model", "STATUS=warming up"]
        assert "STATUS=ready: mode=tree budget=16 topk=8" in messages[-1]
        server.wait_until_ready()
        # An idle loop is alive, and says so.
        assert [manager.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3

        key = {"authorization": "Bearer second"}
        for path in ("/v1/models", "/server_info"):
            assert server.get(path).status_code == 401
            assert server.get(path, headers={"authorization": "Bearer no"}).status_code == 401
            assert server.get(path, headers=key).status_code == 200
        refused = server.post("/v1/completions", {})
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        for path in ("/health", "/ready", "/metrics"):
            assert server.get(path).status_code == 200
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong") as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()

        body = {**ENDLESS, "max_tokens": 500}
        first, first_answer = server.start(body, headers=key)
        wait_for(lambda: server.gauge("ddtree_running") == 1, "the first request to run")
        second, second_answer = server.start({**body, "max_tokens": 2}, headers=key)
        wait_for(lambda: server.gauge("ddtree_queue_length") == 1, "the second request to wait")
        full = server.post("/v1/completions", body, headers=key)
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) >= 1
        assert full.json()["error"]["code"] == "queue_full"

        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.get("/ready").status_code == 503, "the server to drain")
        assert server.get("/ready").json() == {"status": "draining"}
        assert server.get("/health").status_code == 200
        late = server.post("/v1/completions", body, headers=key)
        assert late.status_code == 503, "the first request ended too early for this test"
        assert "shutting down" in late.json()["error"]["message"]
        assert server.wait() == 0
        first.join(DEADLINE)
        second.join(DEADLINE)
        assert first_answer[0].json()["usage"]["completion_tokens"] == 500
        assert second_answer[0].json()["usage"]["completion_tokens"] == 2
        while (message := manager.recv(1000).decode()) == "WATCHDOG=1":
            pass
        assert message == "STOPPING=1\nSTATUS=draining"
        assert "INFO stopped" in server.log


def test_requests_that_outlast_the_drain_timeout_are_told(options: list[str]) -> None:
    with ServerProcess(*options, "--drain-timeout", "0.3") as server:
        server.wait_until_ready()
        waiting, answer = server.start(ENDLESS)
        streaming, stream = server.start({**ENDLESS, "stream": True})
        wait_for(lambda: server.gauge("ddtree_queue_length") == 1, "both requests to be there")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        waiting.join(DEADLINE)
        streaming.join(DEADLINE)
        # Whichever of them ran or waited: both get a whole answer that says why.
        for one in (answer[0], stream[0]):
            assert isinstance(one, httpx.Response), one
            assert "shutting down" in one.text
            assert "[DONE]" not in one.text
        assert "2 requests cancelled" in server.log


def test_a_body_that_is_still_coming_is_not_waited_for(options: list[str]) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\nexpect: 100-continue\r\n\r\n"
    )
    with ServerProcess(*options) as server:
        server.wait_until_ready()
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as client:
            client.sendall(head)
            assert client.recv(1000).startswith(b"HTTP/1.1 100 "), "the body is waited for"
            client.sendall(b'{"prompt":')
            server.process.send_signal(signal.SIGTERM)
            with client.makefile("rb") as answer:
                told = answer.read().decode()
        assert server.wait() == 0
        assert told.startswith("HTTP/1.1 503 ")
        assert '"message":"the server is shutting down"' in told
        assert "ERROR" not in server.log


def test_a_second_signal_does_not_wait(options: list[str]) -> None:
    with ServerProcess(*options, "--drain-timeout", "3600") as server:
        server.wait_until_ready()
        thread, answer = server.start(ENDLESS)
        wait_for(lambda: server.gauge("ddtree_running") == 1, "the request to run")
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in server.log, "the first signal to be seen")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
        thread.join(DEADLINE)
        assert isinstance(answer[0], httpx.HTTPError)


SABOTAGE = """
import sys, time
from ddtree_engine.cli.main import main
from ddtree_engine.server import process, service
from ddtree_engine.decoder import Decoder

healthy = Decoder.round

def round(self):
    if any(len(one.prompt) == 77 for one in self.sequences):
        raise RuntimeError("the device is gone")
    if any(len(one.prompt) == 78 for one in self.sequences):
        time.sleep(3600)
    return healthy(self)

Decoder.round = round
service.STUCK_SECONDS = 1.0
process.FLUSH_SECONDS = 0.5
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def sabotaged(tmp_path: Path) -> list[str]:
    """A program whose decode loop crashes on 77 prompt tokens and hangs on 78."""
    script = tmp_path / "sabotaged.py"
    script.write_text(SABOTAGE)
    return [str(script)]


def test_a_crash_of_the_decode_loop_ends_the_process(
    options: list[str], sabotaged: list[str]
) -> None:
    with ServerProcess(*options, "--max-running", "2", program=sabotaged) as server:
        server.wait_until_ready()
        bystander, answer = server.start(ENDLESS)
        wait_for(lambda: server.gauge("ddtree_running") == 1, "the request to run")
        culprit = server.post("/v1/completions", {"prompt": [7] * 77, "max_tokens": 5})
        bystander.join(DEADLINE)
        for one in (culprit, answer[0]):
            assert one.status_code == 500
            assert "the device is gone" in one.json()["error"]["message"]
        assert server.wait() == 1
        *_, log, error, hint = server.log.splitlines()
        assert log.startswith("ERROR the decode thread failed: the device is gone [RuntimeError")
        assert "sabotaged.py:" in log
        assert error == "error: the decode thread failed: RuntimeError: the device is gone"
        assert hint.startswith("hint: ")


def test_a_stuck_decode_loop_is_seen_and_not_waited_for(
    options: list[str], sabotaged: list[str], manager: socket.socket
) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"}
    more = ["--drain-timeout", "0.1"]
    with ServerProcess(*options, *more, program=sabotaged, environment=environment) as server:
        server.wait_until_ready()
        thread, answer = server.start({"prompt": [7] * 78, "max_tokens": 5})
        wait_for(lambda: server.get("/health").status_code == 503, "the health check to fail")
        assert server.get("/health").json()["status"] == "stuck"
        # A second of silence is five times what the watchdog allows.
        before = received(manager)
        assert before[-1] == b"WATCHDOG=1"
        wait_for(lambda: server.get("/health").json()["heartbeat_age_seconds"] > 1.3, "more of it")
        assert received(manager) == []
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
        assert "stuck" in server.log
        thread.join(DEADLINE)
        assert answer[0].status_code == 500


FEW_FILES = """
import resource, sys
from ddtree_engine.cli.main import main

resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
sys.exit(main(sys.argv[1:]))
"""


def test_more_connections_than_open_files(options: list[str], tmp_path: Path) -> None:
    """Those beyond are told so and closed; the others are served, and nobody fills the log."""
    script = tmp_path / "few_files.py"
    script.write_text(FEW_FILES)
    with ServerProcess(*options, program=[str(script)]) as server, ExitStack() as clients:
        server.wait_until_ready()
        thread, answer = server.start({**ENDLESS, "max_tokens": 200})
        wait_for(lambda: server.gauge("ddtree_running") == 1, "the request to run")
        crowd = [
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE))
            for _ in range(300)
        ]
        last = crowd[-1].recv(1000).decode()
        assert last.startswith("HTTP/1.1 503")
        assert "too_many_connections" in last
        crowd[0].sendall(b"GET /ready HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
        assert crowd[0].recv(1000).startswith(b"HTTP/1.1 200")
        thread.join(DEADLINE)
        assert answer[0].json()["usage"]["completion_tokens"] == 200
        clients.close()

        def served() -> bool:
            with suppress(httpx.HTTPError):
                return server.get("/ready").status_code == 200
            return False

        wait_for(served, "others to be served again")
        assert "out of system resource" not in server.log


def test_weights_that_are_not_there(checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    hollow = tmp_path / "hollow"
    hollow.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (hollow / name).write_bytes((checkpoint[0] / name).read_bytes())
    result = serve("--model", str(hollow), "--mode", "ar", "--port", "0")
    assert result.returncode == 1
    error, hint = result.stderr.splitlines()
    assert error == (
        f"error: `{hollow}` has neither model.safetensors nor model.safetensors.index.json"
    )
    assert hint.startswith("hint: the folder may be damaged, cut short,")


def test_the_cause_of_a_failed_start_is_told(checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint[0] / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text("hello")
    result = serve("--model", str(tmp_path), "--mode", "ar", "--port", "0")
    assert result.returncode == 1
    error, cause, hint = result.stderr.splitlines()
    assert error == f"error: `{tmp_path}/tokenizer.json` is not a tokenizer"
    assert cause.startswith("  caused by: expected value at line 1")
    assert hint.startswith("hint: ")


def test_a_target_alone_from_the_first_answer_on(checkpoint: tuple[Path, Path]) -> None:
    """Without a drafter `ar` runs; HTTP answers before the model is there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seen: list[tuple[int, str]] = []

    def ready() -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/ready", timeout=DEADLINE)
        except httpx.ConnectError:
            return False
        seen.append((answer.status_code, answer.json()["status"]))
        return answer.status_code == 200

    options = ["--model", str(checkpoint[0]), "--mode", "ar", "--port", str(port)]
    with ServerProcess(*options, "--recurrent-state", "leak") as server:
        wait_for(ready, "the server to be ready")
        assert seen[0] == (503, "starting")
        assert seen[-1] == (200, "ready")
        server.wait_until_ready()
        assert server.port == port
        answer = server.complete("a", max_tokens=5, top_k=5, ignore_eos=True)
        assert answer["ddtree"]["rounds"] == 5
        info = server.get("/server_info").json()
        assert (info["drafter"], info["block_size"]) == (None, None)
        assert info["max_context"] == 8192
        assert info["recurrent_state"] == "leak"
        assert "WARNING --recurrent-state leak" in server.log
        refused = server.post("/v1/completions", {"prompt": "a", "ddtree": {"mode": "tree"}})
        assert refused.status_code == 400
        assert "needs a drafter" in refused.json()["error"]["message"]
