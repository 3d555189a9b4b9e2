"""Clients that send or read too slowly lose their connection, and nobody else notices."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.engine.serving.server_process import DEADLINE, ServerProcess, wait_for

pytestmark = pytest.mark.e2e

HURRIED = """
import socket, sys
from ddtree_engine.cli.main import main
from ddtree_engine.server import app, connection, listener

listen = listener.listen

def listen_with_small_buffers(host, port):
    made = listen(host, port)
    # The kernel else takes megabytes before the server's own buffer grows.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return made

listener.listen = listen_with_small_buffers
connection.HEADER_SECONDS = connection.UNREAD_SECONDS = app.BODY_SECONDS = 0.5
sys.exit(main(sys.argv[1:]))
"""

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "slow_clients.json").read_text()
)


@pytest.fixture(scope="module")
def hurried(
    checkpoint: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server whose clients have half a second."""
    program = tmp_path_factory.mktemp("hurried") / "hurried.py"
    program.write_text(HURRIED)
    target, drafter = checkpoint
    options = ["--model", str(target), "--drafter", str(drafter), "--max-context", "20000"]
    with ServerProcess(*options, program=[str(program)]) as server:
        server.wait_until_ready()
        yield server


def connect(server: ServerProcess, **options: int) -> socket.socket:
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.settimeout(DEADLINE)
    connection.connect(("127.0.0.1", server.port))
    return connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    parts = []
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def sockets(server: ServerProcess) -> int:
    """Sockets that the server's process has open."""
    found = 0
    for one in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(OSError):
            found += one.readlink().name.startswith("socket:")
    return found


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_is_not_sent_to_its_end_is_given_up(
    hurried: ServerProcess, case: dict[str, Any]
) -> None:
    with connect(hurried) as connection:
        connection.sendall(case["sends"].encode())
        if more := case.get("after_the_answer"):
            assert b" 200 " in connection.recv(65536)
            connection.sendall(more.encode())
        answer = rest(connection)
    last = answer[answer.rindex(b"HTTP/1.1") :] if answer else b""
    head, _, content = last.partition(b"\r\n\r\n")
    assert head.split()[1] == str(case["status"]).encode()
    assert b"connection: close" in head
    error = json.loads(content)["error"]
    assert case["says"] in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert hurried.get("/health").status_code == 200


def test_a_client_that_leaves_within_its_body_counts_as_one_that_left(
    hurried: ServerProcess,
) -> None:
    counted = 'ddtree_http_requests_total{path="/v1/completions",status="499"}'

    def left() -> int:
        lines = hurried.get("/metrics").text.splitlines()
        return sum(round(float(one.split()[1])) for one in lines if one.startswith(counted))

    before = left()
    with connect(hurried) as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n{")
    wait_for(lambda: left() == before + 1, "the request to be counted")


def test_a_header_byte_by_byte_is_given_up(hurried: ServerProcess) -> None:
    with connect(hurried) as connection:
        connection.settimeout(0.05)
        answer = b""

        def dribble() -> bool:
            nonlocal answer
            try:
                connection.sendall(b"x")
                answer += connection.recv(65536)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return bool(answer)

        connection.sendall(HEAD)
        wait_for(dribble, "the server to hang up")
        assert not answer or b" 408 " in answer


def test_a_body_dribbled_after_its_answer_is_given_up(hurried: ServerProcess) -> None:
    """An unknown path is answered before the body is there, which nobody reads then."""
    with connect(hurried) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n")
        assert b" 404 " in connection.recv(65536)

        def dribble() -> bool:
            try:
                connection.sendall(b"x")
            except ConnectionError:
                return True
            return False

        wait_for(dribble, "the server to hang up")


def test_an_answer_that_nobody_reads_is_given_up(hurried: ServerProcess) -> None:
    before = sockets(hurried)
    body = {"prompt": "a", "max_tokens": 19_000, "temperature": 0, "ignore_eos": True}
    content = json.dumps({**body, "stream": True}).encode()
    with connect(hurried, SO_RCVBUF=4096) as connection:
        connection.sendall(HEAD + f"content-length: {len(content)}\r\n\r\n".encode() + content)
        wait_for(lambda: hurried.gauge("ddtree_running") == 1, "the request to run")
        # Others are served meanwhile.
        assert hurried.complete("a", max_tokens=3)["usage"]["completion_tokens"] <= 3
        wait_for(lambda: hurried.gauge("ddtree_running") == 0, "the row to be free")
        wait_for(lambda: sockets(hurried) <= before, "the connection to be given up")
    assert "Traceback" not in hurried.log
    assert "ERROR" not in hurried.log


def test_a_slow_but_steady_reader_gets_everything(hurried: ServerProcess) -> None:
    body = {"prompt": "a", "max_tokens": 600, "temperature": 0, "ignore_eos": True}
    whole = hurried.complete(**body)["choices"][0]["text"]
    content = json.dumps({**body, "stream": True}).encode()
    with connect(hurried, SO_RCVBUF=16384) as connection:
        connection.sendall(
            HEAD + f"connection: close\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
        )
        answer = b"".join(iter(lambda: connection.recv(2048), b""))
    # Chunked: the lines of events are what is not a length.
    events = [one for one in answer.split(b"\r\n") if one.startswith(b"data: {")]
    texts = [json.loads(one[6:])["choices"][0]["text"] for one in events]
    assert "".join(texts) == whole
    assert b"data: [DONE]" in answer


def test_a_pause_of_the_server_is_no_delay_of_its_clients(hurried: ServerProcess) -> None:
    before = sockets(hurried)
    with connect(hurried) as connection:
        wait_for(lambda: sockets(hurried) == before + 1, "the connection to be accepted")
        hurried.process.send_signal(signal.SIGSTOP)
        try:
            connection.sendall(b"GET /ready HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
            end = monotonic() + 0.8
            wait_for(lambda: monotonic() > end, "more time than clients have to pass")
        finally:
            hurried.process.send_signal(signal.SIGCONT)
        assert rest(connection).startswith(b"HTTP/1.1 200 ")
