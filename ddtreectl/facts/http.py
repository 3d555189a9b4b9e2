"""What a service answers over HTTP, asked on the host itself: loopback ports are in reach there."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass

from ddtreectl.facts.output import Output, as_int, json_object, unescaped
from ddtreectl.facts.probe import Call

TIMED_OUT = "timed out"
"""Why there is no answer, where it has not come in time."""


@dataclass(frozen=True)
class Request:
    """A request to a service of the host: GET, or POST where there is a body.

    Attributes:
        url: `http://HOST:PORT/PATH`.
        timeout: seconds until the whole answer must be there.
        body: sent as JSON.
        lines: beginnings of the lines of the answer that are wanted; None for all of it.
        key_file: a file on the host whose first word is the API key; it is read there.
    """

    url: str
    timeout: float
    body: dict[str, object] | None = None
    lines: tuple[str, ...] | None = None
    key_file: str | None = None


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


def call(requests: Sequence[Request]) -> Call:
    """Makes `requests` in order, on the host, and prints an answer a line."""
    told = [
        (
            request.url,
            request.timeout,
            None if request.body is None else json.dumps(request.body),
            None if request.lines is None else list(request.lines),
            request.key_file,
        )
        for request in requests
    ]
    return Call("answers", "tell_answers", (told,))


def parse(output: Output) -> list[Answer]:
    """The answers, in the order of the requests."""
    found = []
    for line in output.lines:
        cells = [unescaped(cell) for cell in line.split("\t")]
        if len(cells) == 4:
            url, status, error, body = cells
            found.append(Answer(url, as_int(status), body, error or None))
    return found
