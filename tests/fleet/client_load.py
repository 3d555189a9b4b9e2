"""Clients of an OpenAI-compatible server, until SIGTERM; then tells how their requests went.

Run as a program, with the server's URL, in the network of a lab. Each client sends one request
after the other, none of them again: what fails has failed. Only with `--knows-restarts` does a
client try again what a router that is just starting cannot do: take a connection, and then know the
models of its workers.
"""

import argparse
import json
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass

import httpx

PAUSE = 0.05
STARTING = "404 model_not_found"
OK = "ok"
WORKER = "x-smg-routed-worker-id"


@dataclass
class Request:
    """One request.

    Attributes:
        id: of the client, and of its request.
        body: which of the bodies it has sent.
        began: when it was sent, in seconds since the epoch.
        ended: when the last of the answer was there, or it failed.
        worker: the URL of the service that the router had it answered by; empty if it did not say.
        outcome: `ok`, or what was wrong.
        text: of the answer.
    """

    id: str
    body: int
    began: float
    ended: float = 0.0
    worker: str = ""
    outcome: str = OK
    text: str = ""


def send(client: httpx.Client, request: Request, body: dict[str, object]) -> None:
    """Send a request to its end."""
    headers = {"x-request-id": request.id}
    try:
        with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            request.worker = answer.headers.get(WORKER, "")
            if answer.status_code != 200:
                said = answer.read().decode(errors="replace")
                unknown = answer.status_code == 404 and '"model_not_found"' in said
                request.outcome = STARTING if unknown else f"{answer.status_code} {said[:200]}"
            elif body.get("stream"):
                request.outcome = read_stream(answer, request)
            else:
                request.text = json.loads(answer.read())["choices"][0]["text"]
    except httpx.ConnectError:
        request.outcome = "refused"
    except httpx.HTTPError as error:
        request.outcome = repr(error)
    request.ended = time.time()


def read_stream(answer: httpx.Response, request: Request) -> str:
    """Read server-sent events to their end; the text is complete only if the server says so."""
    for line in answer.iter_lines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return OK
        if not line.startswith("data: "):
            continue
        event = json.loads(data)
        if "error" in event:
            return f"error {data[:200]}"
        request.text += "".join(choice["text"] for choice in event["choices"])
    return "the stream ended early"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument(
        "--body", action="append", required=True, help="of a request; client N has the Nth"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two requests")
    parser.add_argument("--requests", type=int, help="of each client, which then ends")
    parser.add_argument("--knows-restarts", action="store_true")
    arguments = parser.parse_args()
    bodies: list[dict[str, object]] = [json.loads(text) for text in arguments.body]
    tried_again = {"refused", STARTING} if arguments.knows_restarts else set()
    over = threading.Event()
    told: list[Request] = []

    def one(number: int) -> None:
        sent, which = 0, number % len(bodies)
        with httpx.Client(base_url=arguments.url, timeout=120) as client:
            while not over.is_set() and sent != arguments.requests:
                request = Request(f"{number}-{sent}", which, time.time())
                send(client, request, bodies[which])
                if request.outcome in tried_again:
                    time.sleep(PAUSE)
                    continue
                sent += 1
                told.append(request)  # which one thread at a time does
                over.wait(arguments.pause)

    signal.signal(signal.SIGTERM, lambda *_: over.set())
    threads = [threading.Thread(target=one, args=(number,)) for number in range(arguments.clients)]
    for thread in threads:
        thread.start()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps([asdict(request) for request in told]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
