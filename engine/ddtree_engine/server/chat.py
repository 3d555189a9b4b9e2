"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ddtree_engine.server.answers import Format, envelope, streamed, whole
from ddtree_engine.server.generation import generate
from ddtree_engine.server.models import check_model
from ddtree_engine.server.protocol import ChatRequest
from ddtree_engine.server.service import Service

FORMAT = Format(
    id_prefix="chatcmpl-",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    choice=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    delta=lambda text: {"delta": {"content": text} if text else {}},
    opening={"delta": {"role": "assistant", "content": ""}},
)


def router(service: Service) -> APIRouter:
    """Return the route of chat completions."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat_completions(asked: ChatRequest, http: Request) -> Response:
        """Answer a conversation, as the model's own template writes it."""
        check_model(service, asked.model)
        engine, _ = service.require()
        prompt = engine.tokenizer.chat([one.for_template() for one in asked.messages])
        generation = await generate(service, http, asked, prompt)
        cover = envelope(FORMAT, service.settings.served_model_name)
        if asked.stream:
            return streamed(generation, cover, include_usage=asked.include_usage)
        return await whole(generation, cover)

    return routes
