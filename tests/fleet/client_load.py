"""Clients of an OpenAI-compatible server, until SIGTERM; then tells how their requests went.

Run as a program, with the server's URL, in the network of a lab. Each of a few clients sends one
request after the other, none of them again: what fails has failed. Only with `--knows-restarts`
does a client try again what a router that is just starting cannot do: take a connection, and then
know the models of its workers.
"""

import argparse
import json
import signal
import sys
import threading
import time
from collections import Counter

import httpx

PAUSE = 0.05
STARTING = "404 model_not_found"


def sent(client: httpx.Client, body: dict[str, object]) -> tuple[str, str]:
    """What became of a request, `ok` or what was wrong; and which worker answered it."""
    try:
        answer = client.post("/v1/completions", json=body)
    except httpx.ConnectError:
        return "refused", ""
    except httpx.HTTPError as error:
        return repr(error), ""
    worker = answer.headers.get("x-smg-routed-worker-id", "")
    if answer.status_code == 200:
        return "ok", worker
    if answer.status_code == 404 and '"model_not_found"' in answer.text:
        return STARTING, worker
    return f"{answer.status_code} {answer.text[:200]}", worker


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--delay", type=float, default=0.4, help="seconds that a request takes")
    parser.add_argument("--knows-restarts", action="store_true")
    arguments = parser.parse_args()
    tried_again = {"refused", STARTING} if arguments.knows_restarts else set()
    over = threading.Event()
    told: Counter[str] = Counter()
    by: Counter[str] = Counter()
    lock = threading.Lock()

    def one(number: int) -> None:
        delay = arguments.delay * (1 + number % 3)
        body: dict[str, object] = {"model": "contract", "prompt": "def f():", "delay": delay}
        with httpx.Client(base_url=arguments.url, timeout=60) as client:
            while not over.is_set():
                outcome, worker = sent(client, body)
                if outcome in tried_again:
                    time.sleep(PAUSE)
                    continue
                with lock:
                    told[outcome] += 1
                    by[worker] += outcome == "ok"

    signal.signal(signal.SIGTERM, lambda *_: over.set())
    threads = [threading.Thread(target=one, args=(number,)) for number in range(arguments.clients)]
    for thread in threads:
        thread.start()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps({"outcomes": told, "workers": by}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
