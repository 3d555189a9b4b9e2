"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ddtree_engine.server.answers import Format, envelope, streamed, whole
from ddtree_engine.server.generation import generate
from ddtree_engine.server.models import check_model
from ddtree_engine.server.protocol import CompletionRequest
from ddtree_engine.server.service import Service

FORMAT = Format(
    id_prefix="cmpl-",
    whole="text_completion",
    chunk="text_completion",
    choice=lambda text: {"text": text},
    delta=lambda text: {"text": text},
)


def router(service: Service) -> APIRouter:
    """Return the route of plain completions."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def completions(asked: CompletionRequest, http: Request) -> Response:
        """Complete one prompt."""
        check_model(service, asked.model)
        generation = await generate(service, http, asked, asked.single_prompt)
        cover = envelope(FORMAT, service.settings.served_model_name)
        if asked.stream:
            return streamed(generation, cover, include_usage=asked.include_usage)
        return await whole(generation, cover)

    return routes
