"""Clients of an OpenAI-compatible server, until SIGTERM; then tells how their requests went.

Run as a program, with the server's URL, in the network of a lab. Each of a few clients sends one
request after the other, none of them again: what fails has failed. Only with `--reconnect` is a
connection that was refused tried again, as clients do that know of restarts.
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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--delay", type=float, default=0.4, help="seconds that a request takes")
    parser.add_argument("--reconnect", action="store_true")
    arguments = parser.parse_args()
    over = threading.Event()
    told: Counter[str] = Counter()
    by: Counter[str] = Counter()
    lock = threading.Lock()

    def one(number: int) -> None:
        body = {
            "model": "contract",
            "prompt": "def f():",
            "delay": arguments.delay * (1 + number % 3),
        }
        with httpx.Client(base_url=arguments.url, timeout=60) as client:
            while not over.is_set():
                try:
                    answer = client.post("/v1/completions", json=body)
                    outcome = (
                        "ok"
                        if answer.status_code == 200
                        else f"{answer.status_code}: {answer.text[:200]}"
                    )
                    worker = answer.headers.get("x-smg-routed-worker-id", "")
                except httpx.ConnectError as error:
                    if arguments.reconnect:
                        time.sleep(PAUSE)
                        continue
                    outcome, worker = repr(error), ""
                except httpx.HTTPError as error:
                    outcome, worker = repr(error), ""
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
