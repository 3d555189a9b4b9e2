"""Answers in OpenAI's form, whole or as a stream of server-sent events.

Completions and chat differ in a few names; a `Format` holds them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import time
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from ddtree_engine.errors import EngineError
from ddtree_engine.job import Outcome
from ddtree_engine.server import errors
from ddtree_engine.server.generation import Generation, usage

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Format:
    """Names of one endpoint.

    Attributes:
        id_prefix: of the answer's id.
        whole, chunk: the `object` field of an answer and of a stream's chunks.
        choice: the content of a choice of a whole answer.
        delta: the content of a choice of a chunk that brings text.
        opening: the content of a choice sent before any text, if there is one.
    """

    id_prefix: str
    whole: str
    chunk: str
    choice: Callable[[str], dict[str, Any]]
    delta: Callable[[str], dict[str, Any]]
    opening: dict[str, Any] | None = None


@dataclass(frozen=True)
class Envelope:
    """The fields that all parts of one answer share."""

    format: Format
    model: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """Return id, object, created and model."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def envelope(format_: Format, model: str) -> Envelope:
    """Start an answer."""
    return Envelope(format_, model, f"{format_.id_prefix}{secrets.token_hex(12)}")


async def whole(generation: Generation, cover: Envelope) -> Response:
    """Wait for the end and answer in one piece."""
    pieces = []
    async for event in generation.stream():
        if isinstance(event, str):
            pieces.append(event)
        elif isinstance(event, Outcome):
            text = "".join(pieces)
            choice = {
                "index": 0,
                **cover.format.choice(text),
                "logprobs": None,
                "finish_reason": event.finish_reason,
            }
            return JSONResponse(
                {
                    **cover.fields(cover.format.whole),
                    "choices": [choice],
                    "usage": usage(event),
                    "ddtree": generation.extension(event),
                }
            )
        else:
            return errors.answer(event)
    raise AssertionError("a stream of events ends with an outcome or an error")


def streamed(generation: Generation, cover: Envelope, *, include_usage: bool) -> Response:
    """Answer with server-sent events, one for each round that brings text."""
    return StreamingResponse(
        _events(generation, cover, include_usage),
        media_type="text/event-stream",
        # Proxies that buffer would turn a stream into a long silence.
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _events(
    generation: Generation, cover: Envelope, include_usage: bool
) -> AsyncIterator[bytes]:
    def chunk(content: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        # OpenAI: with include_usage every chunk has the field, null but for the last one.
        unused = {"usage": None} if include_usage else {}
        return _data({**cover.fields(cover.format.chunk), "choices": [choice], **unused, **more})

    if cover.format.opening is not None:
        yield chunk(cover.format.opening)
    async for event in generation.stream():
        if isinstance(event, str):
            yield chunk(cover.format.delta(event))
        elif isinstance(event, EngineError):
            _, type_, code = errors.status_of(event)
            yield _data(errors.body(errors.text_of(event), type_, code))
            return  # without [DONE]: the text is not whole
        else:
            nothing = cover.format.delta("")
            extension = {"ddtree": generation.extension(event)}
            if not include_usage:
                yield chunk(nothing, event.finish_reason, **extension)
            else:
                yield chunk(nothing, event.finish_reason)
                last = {**cover.fields(cover.format.chunk), "choices": [], "usage": usage(event)}
                yield _data({**last, **extension})
            yield DONE


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
