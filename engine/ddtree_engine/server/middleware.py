"""What happens to every HTTP request: the API key, the size, the count by route and status.

Plain ASGI, not Starlette's BaseHTTPMiddleware: that one would hide a client's leaving.
"""

from __future__ import annotations

from hmac import compare_digest

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ddtree_engine.server.errors import CLIENT_LEFT, CRASHED, body

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""What health checks and scrapers ask, who have no key."""

MAX_BODY_BYTES = 16 << 20
"""Largest body that is read: several times what the longest context takes, as text or as ids."""


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
        status = CLIENT_LEFT

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:
            # The answer to it is made further out.
            if status == CLIENT_LEFT:
                status = CRASHED
            raise
        finally:
            self._counter.labels(path, str(status)).inc()


class LimitBody:
    """Stops reading a body that no context could hold, before it fills the memory."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; its body can't be read past the limit."""
        read = 0

        async def count() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                raise HTTPException(
                    413,
                    f"the body is over the limit of {self._limit} bytes",
                    {"connection": "close"},
                )
            return message

        await self._app(scope, count, send)


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
