"""What a service answers over HTTP, asked on the host itself: loopback ports are in reach there."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ddtreectl.facts.output import Output, as_int, json_object, json_objects

_SCRIPT = r"""
import json, socket, time
MOST = 1 << 20
def ask(request):
    authority, _, path = request["url"].partition("//")[2].partition("/")
    host, _, port = authority.rpartition(":")
    body = b"" if request["body"] is None else json.dumps(request["body"]).encode()
    head = [
        ("GET" if request["body"] is None else "POST") + " /" + path + " HTTP/1.1",
        "Host: " + authority, "Connection: close", "Content-Type: application/json",
        "Content-Length: %d" % len(body),
    ]
    if request["key_file"]:
        head.append("Authorization: Bearer " + open(request["key_file"]).read().split()[0])
    end = time.monotonic() + request["timeout"]
    with socket.create_connection((host.strip("[]"), int(port)), request["timeout"]) as peer:
        peer.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        data = b""
        while True:
            head, split, rest = data.partition(b"\r\n\r\n")
            fields = {}
            for line in head.decode("latin-1").split("\r\n")[1:]:
                name, _, value = line.partition(":")
                fields[name.strip().lower()] = value.strip().lower()
            chunked = fields.get("transfer-encoding", "") == "chunked"
            size = int(fields.get("content-length") or MOST)
            if split and not chunked and len(rest) >= size:
                rest = rest[:size]
                break
            if len(data) > MOST:
                break
            peer.settimeout(max(end - time.monotonic(), 0.001))
            piece = peer.recv(1 << 16)
            if not piece:
                break
            data += piece
    words = head.split(None, 2)
    if not split or not words[0].startswith(b"HTTP/"):
        raise ValueError("no HTTP answer" if data else "it closed the connection without a word")
    whole, rest = (b"", rest) if chunked else (rest, b"")
    while rest:
        length, _, rest = rest.partition(b"\r\n")
        count = int(length.partition(b";")[0] or b"0", 16)
        whole, rest = whole + rest[:count], rest[count + 2:] if count else b""
    return int(words[1]), whole.decode("utf-8", "replace")
for request in json.loads(REQUESTS):
    answer = {"url": request["url"], "status": None, "body": "", "error": None}
    try:
        answer["status"], body = ask(request)
        kept = request["lines"]
        answer["body"] = body if kept is None else "".join(
            line + "\n" for line in body.split("\n") if line.startswith(tuple(kept)))
    except socket.timeout:
        answer["error"] = "timed out"
    except Exception as error:
        answer["error"] = str(error) or type(error).__name__
    print(json.dumps(answer), flush=True)
"""


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


def script(requests: Sequence[Request]) -> str:
    """Python text that makes `requests` in order and prints an answer a line."""
    asked = json.dumps([asdict(request) for request in requests])
    return f"REQUESTS = {asked!r}\n{_SCRIPT}"


def argv(python: str, requests: Sequence[Request]) -> list[str]:
    """The command that does the same on its own."""
    return [python, "-IS", "-c", script(requests)]


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
