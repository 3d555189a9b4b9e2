"""The HTTP application of one service."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ddtree_engine import __version__
from ddtree_engine.errors import EngineError
from ddtree_engine.scheduler import QueueFullError
from ddtree_engine.server import chat, completions, errors, info, models
from ddtree_engine.server.middleware import (
    BODY_SECONDS,
    MAX_BODY_BYTES,
    CountRequests,
    LimitBody,
    RequireKey,
)
from ddtree_engine.server.open_bodies import OpenBodies
from ddtree_engine.server.service import Service

COUNTED_PATHS = frozenset(
    {
        "/health",
        "/ready",
        "/server_info",
        "/metrics",
        "/v1/models",
        "/v1/completions",
        "/v1/chat/completions",
    }
)


def create_app(service: Service, bodies: OpenBodies | None = None) -> FastAPI:
    """Return the application of one service.

    Args:
        service: what is served; the caller starts and stops its thread.
        bodies: told of each body that is waited for.
    """
    app = FastAPI(title="ddtree-engine", version=__version__)
    for routes in (
        info.router(service),
        models.router(service),
        completions.router(service),
        chat.router(service),
    ):
        app.include_router(routes)

    async def on_queue_full(_: Request, error: Exception) -> Response:
        assert isinstance(error, QueueFullError)
        assert service.scheduler is not None, "its queue is what is full"
        return errors.answer(error, retry_after=service.scheduler.retry_seconds())

    app.add_exception_handler(QueueFullError, on_queue_full)
    app.add_exception_handler(EngineError, errors.on_engine_error)
    app.add_exception_handler(RequestValidationError, errors.on_validation_error)
    app.add_exception_handler(HTTPException, errors.on_http_error)
    app.add_exception_handler(Exception, errors.on_crash)
    app.add_middleware(
        LimitBody, limit=MAX_BODY_BYTES, seconds=BODY_SECONDS, bodies=bodies or OpenBodies()
    )
    if service.settings.api_keys:
        app.add_middleware(RequireKey, keys=service.settings.api_keys)
    app.add_middleware(CountRequests, counter=service.metrics.http_requests, paths=COUNTED_PATHS)
    return app
