"""What a service answers over HTTP, asked on the host itself: loopback ports are in reach there."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import Output, as_int, json_object, json_objects

_SCRIPT = """
import json, sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for request in json.loads(sys.argv[1]):
    body = request.get("body")
    answer = {"url": request["url"], "status": None, "body": "", "error": None}
    try:
        call = urllib.request.Request(request["url"], method="POST" if body is not None else "GET",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"})
        with opener.open(call, timeout=request["timeout"]) as reply:
            answer["status"], body = reply.status, reply.read(1 << 20)
            answer["body"] = body.decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        answer["status"], body = error.code, error.read(1 << 16)
        answer["body"] = body.decode("utf-8", "replace")
    except Exception as error:
        answer["error"] = str(getattr(error, "reason", None) or error or type(error).__name__)
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Request:
    """A request to a service of the host: GET, or POST where there is a body."""

    url: str
    timeout: float
    body: dict[str, object] | None = None


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        url: what was asked.
        status: the HTTP status, or None where there was no answer.
        body: the body's text.
        error: why there was no answer.
    """

    url: str
    status: int | None
    body: str = ""
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the status is 200."""
        return self.status == 200

    @property
    def content(self) -> dict[str, object]:
        """The JSON object in the body, or an empty one."""
        return json_object(self.body)

    def __str__(self) -> str:
        """How messages show it."""
        if self.status is None:
            return f"{self.url}: no answer ({self.error})"
        return f"{self.url}: {self.status} {self.body[:300]}".rstrip()


def base_url(address: str, port: int) -> str:
    """Where a service is asked from its own host."""
    ip = ipaddress.ip_address(address)
    name = "127.0.0.1" if ip.is_unspecified else f"[{ip}]" if ip.version == 6 else str(ip)
    return f"http://{name}:{port}"


def argv(python: str, requests: Sequence[Request]) -> list[str]:
    """The command that makes `requests` in order and prints an answer a line."""
    asked = [
        {"url": request.url, "timeout": request.timeout, "body": request.body}
        for request in requests
    ]
    return [python, "-c", _SCRIPT, json.dumps(asked)]


def command(python: str, bases: Sequence[str], timeout: float) -> str:
    """Ask each service for its health, readiness and information."""
    requests = [
        Request(f"{base}{path}", timeout)
        for base in bases
        for path in ("/health", "/ready", "/server_info")
    ]
    return " ".join(quote(word) for word in argv(python, requests))


def parse(output: Output) -> list[Answer]:
    """The answers, in the order of the requests."""
    found = []
    for entry in json_objects(output.stdout):
        url = entry.get("url")
        if not isinstance(url, str):
            continue
        error = entry.get("error")
        answer = Answer(
            url=url,
            status=as_int(entry.get("status")),
            body=str(entry.get("body") or ""),
            error=None if error is None else str(error),
        )
        found.append(answer)
    return found
