"""What services answer: real sockets on one side, the script that hosts run on the other."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from ddtreectl.facts import http
from ddtreectl.facts.http import Answer, Request
from ddtreectl.facts.output import Output

Serve = Callable[[bytes], str]


@pytest.fixture
def heard() -> list[bytes]:
    """What the servers of `serve` were sent."""
    return []


@pytest.fixture
def serve(heard: list[bytes]) -> Iterator[Serve]:
    """Starts a server that sends the same bytes to everyone, and ends the connection."""
    with ExitStack() as stack:

        def start(said: bytes) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer() -> None:
                peer, _ = listener.accept()
                with peer:
                    heard.append(peer.recv(1 << 16))
                    for at in range(0, len(said), 7):  # in pieces that end anywhere
                        peer.sendall(said[at : at + 7])

            thread = threading.Thread(target=answer)
            thread.start()
            stack.callback(thread.join)
            return f"http://127.0.0.1:{listener.getsockname()[1]}/ready"

        yield start


def ask(*requests: Request) -> list[Answer]:
    done = subprocess.run(
        http.call(requests).argv(sys.executable),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return http.parse(Output(0, done.stdout))


CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"
    b"5\r\n0\r\n\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n"
)
ANSWERS: dict[str, tuple[bytes, int | None, str, str | None]] = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodyrest", 200, "body", None),
    "until the end": (b"HTTP/1.0 503 Busy\r\nX: y\r\n\r\n{\xc3\xa9}", 503, "{é}", None),
    "chunks": (CHUNKED, 200, "0\r\n\r\nabc", None),
    "no body": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404, "", None),
    "nothing": (b"", None, "", "it closed the connection without a word"),
    "garbage": (b"SSH-2.0-OpenSSH\r\n\r\n", None, "", "no HTTP answer"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer(serve: Serve, case: str) -> None:
    said, status, body, error = ANSWERS[case]
    url = serve(said)
    (answer,) = ask(Request(url, 5.0))
    assert answer == Answer(url, status, body, error)


def test_only_the_wanted_lines_are_passed_on(serve: Serve) -> None:
    url = serve(b"HTTP/1.0 200 OK\r\n\r\n# HELP a\na_total 1\nb_total 2\nab 3\n")
    (answer,) = ask(Request(url, 5.0, lines=("a_", "c")))
    assert answer.body == "a_total 1\n"


def test_who_does_not_answer_is_given_up_and_the_next_is_asked(serve: Serve) -> None:
    url = serve(b"HTTP/1.0 200 OK\r\n\r\nok")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        hung, fine = ask(Request(f"http://127.0.0.1:{port}/x", 0.3), Request(url, 5.0))
    assert (hung.status, hung.error) == (None, "timed out")
    assert fine.body == "ok"


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    (answer,) = ask(Request(f"http://127.0.0.1:{port}/x", 5.0))
    assert (answer.status, answer.error) == (None, "[Errno 111] Connection refused")


def test_a_body_is_posted(serve: Serve, heard: list[bytes]) -> None:
    body: dict[str, object] = {"prompt": "é\"\\\n'$HOME"}
    (answer,) = ask(Request(serve(b"HTTP/1.0 200 OK\r\n\r\nok"), 5.0, body))
    assert answer.ok
    head, _, sent = heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /ready HTTP/1.1\r\n")
    assert f"Content-Length: {len(sent)}".encode() in head
    assert json.loads(sent) == body
