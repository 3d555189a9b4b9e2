"""What happens to every HTTP request: the API key, size and time of the body, the count of answers.

Plain ASGI, not Starlette's BaseHTTPMiddleware: that one would hide a client's leaving.
"""

from __future__ import annotations

import asyncio
from hmac import compare_digest

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ddtree_engine.server.errors import CLIENT_LEFT, CRASHED, body
from ddtree_engine.server.open_bodies import OpenBodies

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""What health checks and scrapers ask, who have no key."""

MAX_BODY_BYTES = 16 << 20
"""Largest body that is read: several times what the longest context takes, as text or as ids."""

BODY_SECONDS = 60.0
"""Time that a client has to send a body."""


class CountRequests:
    """Counts answers by route and status."""

    def __init__(self, app: ASGIApp, counter: Counter, paths: frozenset[str]) -> None:
        """Wrap `app`; a path outside `paths` is counted as "other", whatever a client invents."""
        self._app = app
        self._counter = counter
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"
        status, left = CLIENT_LEFT, False

        async def listen() -> Message:
            nonlocal left
            message = await receive()
            left = left or message["type"] == "http.disconnect"
            return message

        async def watch(message: Message) -> None:
            nonlocal status
            # An answer made after that is about a body that was cut off, and reaches nobody.
            if message["type"] == "http.response.start" and not left:
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, listen, watch)
        except Exception:
            # The answer to it is made further out.
            if status == CLIENT_LEFT:
                status = CRASHED
            raise
        finally:
            self._counter.labels(path, str(status)).inc()


class LimitBody:
    """Stops reading a body that no context could hold, or whose client does not send it."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float, bodies: OpenBodies) -> None:
        """Wrap `app`; bodies have `limit` bytes at most, and `seconds` to arrive."""
        self._app = app
        self._bodies = bodies
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; its body can't be read past the limits."""
        read, whole = 0, False
        announced = _announced_bytes(scope)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds

        async def count() -> Message:
            nonlocal read, whole
            if whole:  # what comes after the body is the end, which may be far off
                return await receive()
            if announced > self._limit:
                raise self._too_large()
            try:
                async with asyncio.timeout_at(deadline) as wait:
                    with self._bodies.waiting(wait):
                        message = await receive()
            except TimeoutError:
                raise self._too_late() from None
            read += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if read > self._limit:
                raise self._too_large()
            return message

        await self._app(scope, count, send)

    def _too_late(self) -> HTTPException:
        close = {"connection": "close"}
        if self._bodies.given_up:
            return HTTPException(503, "the server is shutting down", close)
        return HTTPException(408, f"the body did not come within {self._seconds:g} s", close)

    def _too_large(self) -> HTTPException:
        return HTTPException(
            413, f"the body is over the limit of {self._limit} bytes", {"connection": "close"}
        )


def _announced_bytes(scope: Scope) -> int:
    """Length of a body that its header tells; 0 where it does not."""
    length = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
    return int(length) if length.isascii() and length.isdigit() else 0


class RequireKey:
    """Lets only requests with a known `Authorization: Bearer` key through, but for open paths."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 401."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allows(scope):
            await self._app(scope, receive, send)
            return
        refusal = JSONResponse(
            body(
                "the API key is missing or wrong (send it as `Authorization: Bearer KEY`)",
                "authentication_error",
                "invalid_api_key",
            ),
            401,
            {"www-authenticate": "Bearer"},
        )
        await refusal(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        # As bytes: a header has no encoding, and a key may be any text.
        header = Headers(scope=scope).get("authorization", "").encode("latin-1")
        scheme, _, given = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        # Every key is compared, so that the time tells nothing.
        found = [compare_digest(given.strip(), key) for key in self._keys]
        return any(found)
