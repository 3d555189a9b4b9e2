"""A watch tells each change once: snapshots and changes, and the webhook that gets them."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddtreectl.apply.webhook import TRIES, Webhook
from ddtreectl.cli.main import run
from ddtreectl.errors import DdtreectlError, StepError, UnreachableError, UsageError
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.gpu import Gpus
from ddtreectl.gpu.verdict import Verdict
from ddtreectl.plan.changes import Snapshot, changes, snapshot
from ddtreectl.plan.gpu_report import GpuReport, GpuVerdict, Remark
from ddtreectl.plan.status import HostStatus, ServiceStatus
from tests.ctl.machine import Machine

NO_DRIVER = Remark("", Verdict.CORDON_HOST, "the driver hangs", "reboot", "field", "driver-hung")
LOST = Remark("GPU 1", Verdict.CORDON_HOST, "the GPU is lost", "reboot", "field", "gpu-lost")
CORDON = Cordon(1, "GPU-1", "smoke", "ada@ops", "2026-01-02T03:04:05")
CARDS = tuple(GpuVerdict(f"GPU {n}", f"GPU-{n}", None, Verdict.OK, False) for n in (0, 1))
FINE = GpuReport(gpus=CARDS)


def service(**changes: Any) -> ServiceStatus:
    plain: dict[str, Any] = dict.fromkeys(ServiceStatus.__dataclass_fields__)
    known = {"host": "h1", "slot": "gpu1", "health": "healthy", "generation": 1, "problem": ""}
    return ServiceStatus(**{**plain, **known, "mode": "tree", **changes})


def host(health: GpuReport = FINE, *services: ServiceStatus) -> HostStatus:
    return HostStatus("h1", "systemd", True, None, (), (), Gpus("absent"), services, health)


class Told:
    """What a watch tells of one host, look by look."""

    def __init__(self) -> None:
        self.before: Snapshot = {}

    def of(self, outcome: HostStatus | DdtreectlError, *kept: Cordon) -> list[str]:
        found = snapshot({"h1": outcome}, self.before, {"h1": kept})
        told = [str(change) for change in changes(self.before, found)]
        self.before = found
        return told


def test_what_is_fine_is_not_told_at_the_first_look_and_nothing_is_told_twice() -> None:
    told = Told()
    hurt = GpuReport(Verdict.CORDON_HOST, CARDS, (LOST,), (CORDON,))
    first = told.of(host(hurt, service()))
    assert first == [
        "h1 GPU 1: cordon-host: the GPU is lost",
        f"h1 cordon GPU-1: cordoned: {CORDON}",
    ]
    assert told.of(host(hurt, service())) == []
    assert told.of(host(FINE, service())) == [
        "h1 GPU 1: ok (was cordon-host)",
        "h1 cordon GPU-1: uncordoned (was cordoned)",
    ]


def test_a_new_sign_of_a_gpu_is_a_change_and_a_repeated_one_is_none() -> None:
    told = Told()
    told.of(host())
    once = replace(LOST, reason="Xid 48", sign="xid-48", verdict=Verdict.DRAIN_GPU)
    report = GpuReport(Verdict.DRAIN_GPU, CARDS, (once,))
    assert told.of(host(report)) == ["h1 GPU 1: drain-gpu (was ok): Xid 48"]
    again = replace(once, reason="Xid 48 (2 times)")
    assert told.of(host(replace(report, remarks=(again,)))) == []
    more = (again, replace(once, sign="xid-63", verdict=Verdict.DEGRADED))
    assert told.of(host(replace(report, remarks=more))) == [
        "h1 GPU 1: drain-gpu (was drain-gpu): Xid 48 (2 times)"
    ]


def test_services_come_fail_restart_and_go() -> None:
    told = Told()
    told.of(host())
    assert told.of(host(FINE, service())) == ["h1 gpu1: healthy: generation 1, tree"]
    failed = service(health="failed", problem="unit is dead")
    assert told.of(host(FINE, failed)) == ["h1 gpu1: failed (was healthy): unit is dead"]
    back = service(restarts=1, problem="it ended and was restarted once")
    assert told.of(host(FINE, back)) == [
        "h1 gpu1: healthy (was failed): it ended and was restarted once"
    ]
    assert told.of(host(FINE, service(restarts=1, uptime_seconds=5.0))) == []
    assert told.of(host()) == ["h1 gpu1: gone (was healthy)"]


def test_a_host_that_does_not_answer_keeps_what_is_known_of_it() -> None:
    told = Told()
    hurt = GpuReport(Verdict.CORDON_HOST, CARDS, (LOST,))
    told.of(host(hurt, service()))
    gone = UnreachableError("`h1` does not answer")
    assert told.of(gone) == ["h1: unreachable (was reachable): `h1` does not answer"]
    assert told.of(gone) == []
    assert told.of(StepError("no")) == ["h1: unknown (was unreachable): no"]
    assert told.of(host(hurt, service())) == ["h1: reachable (was unknown)"]


def test_a_host_that_answers_at_last_is_seen_for_the_first_time() -> None:
    told = Told()
    kept = replace(CORDON, kept="operator")
    first = told.of(UnreachableError("no answer"), kept)
    assert len(first) == 2
    assert "the host itself does not know it yet" in first[0]
    assert first[1] == "h1: unreachable: no answer"
    assert told.of(host(replace(FINE, cordons=(CORDON,)), service())) == [
        "h1: reachable (was unreachable)",
        f"h1 cordon GPU-1: cordoned (was cordoned): {CORDON}",
    ]


def test_a_driver_that_hangs_is_one_change_and_not_one_for_each_gpu() -> None:
    told = Told()
    told.of(host())
    hung = GpuReport(Verdict.CORDON_HOST, (), (NO_DRIVER,))
    assert told.of(host(hung)) == ["h1 driver: cordon-host (was ok): the driver hangs"]
    assert told.of(host()) == ["h1 driver: ok (was cordon-host)"]
    assert told.of(host(replace(FINE, gpus=CARDS[:1]))) == ["h1 GPU 1: gone (was ok)"]


# ---- the webhook ----


class Receiver(BaseHTTPRequestHandler):
    """Keeps what is posted; the first answers of the server are as many errors as it has."""

    server: "Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.errors.pop() if self.server.errors else 204
        if status == 204:
            self.server.got.append((self.path, json.loads(body)))
            self.server.authorized += filter(None, [self.headers["Authorization"]])
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Server(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.errors: list[int] = []
        self.authorized: list[str] = []
        self.got: list[tuple[str, dict[str, object]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?token=secret"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_changes_are_posted_in_order_and_again_where_they_were_not_taken(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddtreectl.apply.webhook.FIRST_PAUSE", 0.001)
    server.errors = [500, 503]
    said: list[str] = []
    hook = Webhook(server.url, said.append)
    for number in range(3):
        hook.post({"text": f"change {number} τ"})
    hook.close()
    assert [body["text"] for _, body in server.got] == [f"change {n} τ" for n in range(3)]
    assert {path for path, _ in server.got} == {"/hook?token=secret"}
    assert said == []


@pytest.mark.parametrize("status", [302, 404])
def test_an_answer_that_stays_the_same_is_not_asked_for_again(server: Server, status: int) -> None:
    server.errors = [status]
    said: list[str] = []
    hook = Webhook(server.url, said.append)
    hook.post({"text": "a"})
    hook.post({"text": "b"})
    hook.close()
    assert [body["text"] for _, body in server.got] == ["b"]
    assert f"does not take a change: it answers {status}" in said[0]


def test_an_address_may_hold_anything(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtreectl.apply.webhook.FIRST_PAUSE", 0.001)
    said: list[str] = []
    url = server.url.replace("127.0.0.1", "ada:p%40ss@127.0.0.1").replace("secret", "gehe im ü%20")
    hook = Webhook(url, said.append)
    hook.post({"text": "a"})
    hook.close()
    assert said == []
    assert [path for path, _ in server.got] == ["/hook?token=gehe%20im%20%C3%BC%20"]
    assert server.authorized == ["Basic YWRhOnBAc3M="]
    lost = Webhook("http://a..b/hook", said.append)
    lost.post({"text": "a"})
    lost.post({"text": "b"})
    lost.close()
    assert len(said) == 2, "each is told, and the first has not ended the posting"


def test_a_webhook_that_never_ends_its_answer_holds_nothing_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hook = Webhook(f"http://127.0.0.1:{listener.getsockname()[1]}/", str)
        hook.post({"text": "a"})
        connection, _ = listener.accept()
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n...")
        hook.close()
        with connection:
            assert not hook._thread.is_alive()


def test_a_webhook_that_takes_nothing_is_told_without_its_secret(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddtreectl.apply.webhook.FIRST_PAUSE", 0.001)
    server.errors = [500] * TRIES
    said: list[str] = []
    hook = Webhook(server.url, said.append)
    hook.post({"text": "a"})
    hook.post({"text": "b"})
    hook.close()
    assert said == ["! the webhook at 127.0.0.1 does not take a change: it answers 500"]
    assert [body["text"] for _, body in server.got] == ["b"]


@pytest.mark.parametrize("url", ["", "x", "ftp://h/", "http://", "http://h:x/", "http://[h/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="the webhook is no address"):
        Webhook(url, print)


def test_watch_refuses_a_wrong_address_before_it_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDTREECTL_WEBHOOK", "ftp://secret.example/")
    assert run(["watch"]) == 2
    said = capsys.readouterr().err
    assert "the webhook is no address" in said
    assert "secret" not in said


def test_a_watch_prints_and_posts_the_same(
    bare_machine: Machine, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DDTREECTL_WEBHOOK", server.url)
    assert bare_machine.run("cordon", "local", "--reason", "dust").returncode == 0
    watch = bare_machine.begin("watch", "--interval", "0.1", "--json")
    assert watch.stdout is not None
    first = json.loads(watch.stdout.readline())
    assert (first["host"], first["what"], first["after"]) == ("local", "cordon host", "cordoned")
    assert bare_machine.run("uncordon", "local").returncode == 0
    second = json.loads(watch.stdout.readline())
    assert second["text"] == "local cordon host: uncordoned (was cordoned)"
    watch.send_signal(signal.SIGINT)
    rest, said = watch.communicate(timeout=30)
    assert (watch.returncode, rest, said) == (0, "", "")
    assert [body for _, body in server.got] == [first, second]
