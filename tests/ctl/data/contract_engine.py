"""A small server that keeps the engine's side of the contract, and breaks it on request.

It stands in for `ddtree-engine` where a test is about ddtreectl and not about the engine. What it
breaks is said by a file named `faults` in its model folder, one word a line:
exit, exit-zero, never-ready, wrong-text, wrong-mode, no-listen, die-after-ready, bad-model,
stubborn.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect")
    inspect.add_argument("--json", action="store_true")
    serve = commands.add_parser("serve")
    for name in ("--mode", "--host", "--device", "--dtype"):
        serve.add_argument(name)
    for name in ("--budget", "--topk", "--port", "--max-running", "--max-queue", "--drain-timeout"):
        serve.add_argument(name, type=int)
    for command in (inspect, serve):
        command.add_argument("--model", default="bundled")
        command.add_argument("--drafter", default="bundled")
    serve.add_argument("--api-key-file", type=Path)
    arguments = parser.parse_args()
    faults = read_faults(arguments.model)
    if "bad-model" in faults:
        sys.stderr.write("error: tensor `lm_head.weight` is missing\nhint: download it again\n")
        return 1
    if arguments.command == "inspect":
        sys.stdout.write("{}\n")
        return 0
    return run(arguments, faults)


class Running:
    """Counts requests that are in progress; a request waits as long as its field `delay` says."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


def read_faults(model: str) -> set[str]:
    path = Path(model) / "faults"
    return set(path.read_text().split()) if path.exists() else set()


def read_key(path: Path | None) -> str | None:
    """The key that clients need, from the credential of the file's name, as the engine reads it."""
    if path is None:
        return None
    return Path(os.environ["CREDENTIALS_DIRECTORY"], path.name).read_text().strip()


def run(arguments: argparse.Namespace, faults: set[str]) -> int:
    def log(text: str) -> None:
        sys.stderr.write(f"INFO {text}\n")
        sys.stderr.flush()

    log(f"starting mode={arguments.mode} budget={arguments.budget}")
    if faults & {"exit", "exit-zero"}:
        sys.stderr.write("error: the model does not fit\n")
        return 0 if "exit-zero" in faults else 1
    if "no-listen" in faults:
        while True:
            time.sleep(60)
    started = datetime.now(UTC).isoformat()
    mode = "ar" if "wrong-mode" in faults else arguments.mode
    state = {"ready": False}
    key = read_key(arguments.api_key_file)
    running = Running()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, content: dict[str, object] | str) -> None:
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def refused(self) -> bool:
            if key is None or self.headers["Authorization"] == f"Bearer {key}":
                return False
            self.answer(401, {"error": {"message": "the API key is missing or wrong"}})
            return True

        def do_GET(self) -> None:
            if self.path not in {"/health", "/ready", "/metrics"} and self.refused():
                return
            if self.path == "/health":
                self.answer(200, {"status": "ok"})
            elif self.path == "/ready":
                if state["ready"]:
                    self.answer(200, {"status": "ready"})
                else:
                    self.answer(503, {"status": "starting"})
            elif self.path == "/v1/models":
                self.answer(200, {"object": "list", "data": [{"id": "contract"}]})
            elif self.path == "/metrics":
                self.answer(200, f"ddtree_running {running.count}\nddtree_queue_length 0\n")
            elif self.path == "/server_info":
                self.answer(
                    200,
                    {
                        "engine": "ddtree-engine",
                        "mode": mode,
                        "budget": arguments.budget,
                        "topk": arguments.topk,
                        "pid": os.getpid(),
                        "port": arguments.port,
                        "started_at": started,
                        "device": "cpu",
                        "model": {"name": "contract"},
                        "totals": {"acceptance_length": 3.5, "decode_tokens_per_second": 123.0},
                    },
                )
            else:
                self.answer(404, {"error": {"message": "not found"}})

        def do_POST(self) -> None:
            if self.refused():
                return
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            used = asked.get("ddtree", {}).get("mode", arguments.mode)
            with running:
                time.sleep(float(asked.get("delay", 0)))
            text = "return a" if "wrong-text" in faults and used != "ar" else "return b"
            self.answer(200, {"choices": [{"text": text}], "ddtree": {"mode": used}})

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((arguments.host, arguments.port), Handler)

    def stop(number: int, frame: object) -> None:
        if "stubborn" not in faults:
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    if "never-ready" not in faults:
        state["ready"] = True
        notify(f"READY=1\nMAINPID={os.getpid()}\n")
        threading.Thread(target=feed_the_watchdog, daemon=True).start()
        log(f"ready: mode={mode} budget={arguments.budget} port={arguments.port}")
    if "die-after-ready" in faults:
        threading.Timer(0.3, lambda: os._exit(3)).start()
    server.serve_forever()
    return 0


def feed_the_watchdog() -> None:
    """Tell systemd that all is well, as often as it wants to know."""
    seconds = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    while seconds:
        notify("WATCHDOG=1")
        time.sleep(seconds / 4)


def notify(text: str) -> None:
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), path)


if __name__ == "__main__":
    sys.exit(main())
