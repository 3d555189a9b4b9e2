"""A client's connection, which ends where the client no longer keeps up its side of it.

uvicorn gives up an idle connection between two requests and waits for ever otherwise: for the rest
of a header, and for a client that does not read. Each would keep a socket and memory for as long as
somebody likes. Bodies have their own time limit (`middleware.py`), since there an answer is made.

More connections than there are file descriptors for (`open_files.py`) are answered 503.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ddtree_engine.server.errors import body
from ddtree_engine.server.open_files import most_connections

HEADER_SECONDS = 30.0
"""Time that a client has from connecting, or from the first byte of a further request, to the end
of the request's header."""

UNREAD_SECONDS = 60.0
"""Time in which a client has to take at least some of what waits for it."""

CHECKS = 10
"""How often within the shorter of these times a connection is looked at."""


class Connection(H11Protocol):
    """HTTP/1.1 with limits on how long a client may send a header and leave its answer unread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what uvicorn gives."""
        super().__init__(*arguments, **options)
        self._check: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._clock = 0.0  # seconds that the client has had
        self._begun: float | None = None  # to wait for a header
        self._unread = 0  # bytes at the last check
        self._taken_at = 0.0  # when the client last took some, or had all

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look after the connection."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            self._refuse(503, "too many connections", "server_error", "too_many_connections")
            return
        self._looked_at = self.loop.time()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in OpenAI's form."""
        self._refuse(400, msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing of a client that asks for WebSockets: its request is served without."""

    @property
    def _answering(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _look(self) -> None:
        interval = min(HEADER_SECONDS, UNREAD_SECONDS) / CHECKS
        now = self._passed(2 * interval)
        if self._leaves_unread(now):
            # Not `close`, which waits until all is read.
            self.transport.abort()
            return
        if self._header_is_late(now):
            self._refuse(408, "the request did not come in time")
        self._check = self.loop.call_later(interval, self._look)

    def _passed(self, most: float) -> float:
        """Seconds that the client has had; no more than `most` since the last look.

        While the whole process was paused nothing was read or written, and where a pause ends, what
        has come meanwhile is read after this.
        """
        now = self.loop.time()
        self._clock += min(now - self._looked_at, most)
        self._looked_at = now
        return self._clock

    def _header_is_late(self, now: float) -> bool:
        """Whether a request is waited for, by nothing else that would end, and for too long."""
        if (
            self._answering
            or self.timeout_keep_alive_task is not None
            or self.transport.is_closing()
        ):
            self._begun = None
            return False
        if self._begun is None:
            self._begun = now
        return now - self._begun > HEADER_SECONDS

    def _leaves_unread(self, now: float) -> bool:
        """Whether nothing was taken for too long.

        Looked at only while nothing is added, when what waits can't but fall: asyncio does not
        tell how much has gone.
        """
        unread = self.transport.get_write_buffer_size()
        fixed = self.flow.write_paused or not self._answering or self.transport.is_closing()
        if not (unread and fixed) or unread < self._unread:
            self._taken_at = now
        self._unread = unread
        return now - self._taken_at > UNREAD_SECONDS

    def _refuse(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        code: str = "invalid_http",
    ) -> None:
        """Answer with an error, where an answer can still be begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = json.dumps(body(message, kind, code)).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
                (b"connection", b"close"),
            ]
            events = (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=content),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(one) or b"" for one in events))
        self.transport.close()
