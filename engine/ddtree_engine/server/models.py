"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ddtree_engine.server.errors import UnknownModelError
from ddtree_engine.server.service import Service


def check_model(service: Service, name: str | None) -> None:
    """Refuse a request for another model: its answer would not be what was asked for.

    Raises:
        UnknownModelError: `name` is given and is not the served one.
    """
    served = service.settings.served_model_name
    if name is not None and name != served:
        raise UnknownModelError(
            f"the model `{name}` is not served here", hint=f"this server's model is `{served}`"
        )


def router(service: Service) -> APIRouter:
    """Return the routes that list the one model."""
    routes = APIRouter()

    def card() -> dict[str, Any]:
        scheduler = service.scheduler
        return {
            "id": service.settings.served_model_name,
            "object": "model",
            "created": int(service.started_at.timestamp()),
            "owned_by": "ddtree-engine",
            "max_model_len": None if scheduler is None else scheduler.context,
        }

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the served model."""
        return {"object": "list", "data": [card()]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Describe the served model."""
        check_model(service, name)
        return card()

    return routes
