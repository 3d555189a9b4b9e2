"""Posts changes to an address, without holding anything up."""

import base64
import http.client
import json
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote, unquote, urlsplit

from ddtreectl.errors import UsageError

TIMEOUT = 5.0
TRIES = 5
FIRST_PAUSE = 0.5
WAITING = 1000
"""Posts that may wait for an address that does not answer."""

FINAL = frozenset({301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 410, 413, 415})
"""Answers that another try does not change."""

AS_IT_IS = "%/:=&?~#+!$,;'@()*[]"
"""What an address may hold besides letters and digits; the rest is encoded."""


class Webhook:
    """Posts JSON documents one after the other, each until it was taken or given up.

    Args:
        url: `http://` or `https://`, with `user:password@` where it wants them; what is before and
            after the host may be a secret, and is never said.
        say: tells the operator that a post was given up.

    Raises:
        UsageError: it is no such address.
    """

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in {"http", "https"} or not url.isprintable():
            raise UsageError(
                "the webhook is no address", hint="it begins with `https://` or `http://`"
            )
        self._secure = parts.scheme == "https"
        self._host, self._port = host, port
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._path = quote(path, safe=AS_IT_IS)
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(named.encode()).decode()}"
        self._say = say
        self._waiting: queue.Queue[Mapping[str, object] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def post(self, document: Mapping[str, object]) -> None:
        """Have a document posted; where too many wait it is given up."""
        try:
            self._waiting.put_nowait(document)
        except queue.Full:
            self._say(f"! too many changes wait for the webhook at {self._host}; one is given up")

    def close(self, patience: float = 10.0) -> None:
        """Wait for what is left to be posted."""
        try:
            self._waiting.put(None, timeout=patience)
        except queue.Full:
            return
        self._thread.join(patience)

    def _work(self) -> None:
        while (document := self._waiting.get()) is not None:
            pause = FIRST_PAUSE
            for attempt in range(1, TRIES + 1):
                failure, final = self._try(document)
                if not failure:
                    break
                if final or attempt == TRIES:
                    self._say(f"! the webhook at {self._host} does not take a change: {failure}")
                    break
                time.sleep(pause)
                pause *= 2

    def _try(self, document: Mapping[str, object]) -> tuple[str, bool]:
        """Post a document. Returns what went wrong, or nothing, and whether it stays that way."""
        body = json.dumps(document, ensure_ascii=False).encode()
        try:
            connection = self._connection()
            try:
                connection.request("POST", self._path, body, self._headers)
                status = connection.getresponse().status  # whatever more it says may take for ever
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:  # a name that is none
            return str(error) or type(error).__name__, False
        if 200 <= status < 300:
            return "", True
        other = ", to another address: give that one" if 300 <= status < 400 else ""
        return f"it answers {status}{other}", status in FINAL

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
