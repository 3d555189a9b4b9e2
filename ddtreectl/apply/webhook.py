"""Posts changes to an address, without holding anything up."""

import http.client
import json
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from ddtreectl.errors import UsageError

TIMEOUT = 5.0
TRIES = 5
FIRST_PAUSE = 0.5
WAITING = 1000
"""Posts that may wait for an address that does not answer."""


class Webhook:
    """Posts JSON documents one after the other, each until it was taken or given up.

    Args:
        url: `http://` or `https://`; the words after the host may be a secret, and are never said.
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
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
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
                failure = self._try(document)
                if not failure:
                    break
                if attempt == TRIES:
                    self._say(f"! the webhook at {self._host} does not take a change: {failure}")
                    break
                time.sleep(pause)
                pause *= 2

    def _try(self, document: Mapping[str, object]) -> str:
        """Post a document. Returns what went wrong, or nothing."""
        body = json.dumps(document, ensure_ascii=False).encode()
        try:
            connection = self._connection()
            try:
                connection.request("POST", self._path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read(1 << 16)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        return "" if 200 <= answer.status < 300 else f"it answers {answer.status}"

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
