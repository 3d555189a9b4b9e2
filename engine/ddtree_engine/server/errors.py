"""Errors as HTTP answers, in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ddtree_engine.errors import EngineError, OutOfMemoryError, RequestError
from ddtree_engine.job import CancelledError
from ddtree_engine.scheduler import QueueFullError, UnavailableError

CLIENT_LEFT = 499
"""Status counted for a client that went away before its answer."""

CRASHED = 500
"""Status of what should not happen."""


class UnknownModelError(EngineError):
    """A request names a model that is not served here."""


def status_of(error: EngineError) -> tuple[int, str, str]:
    """Return HTTP status, `type` and `code` of an error."""
    match error:
        case RequestError():
            return 400, "invalid_request_error", "invalid_value"
        case UnknownModelError():
            return 404, "invalid_request_error", "model_not_found"
        case QueueFullError():
            return 429, "rate_limit_error", "queue_full"
        case UnavailableError():
            return 503, "server_error", "unavailable"
        case OutOfMemoryError():
            return 503, "server_error", "out_of_memory"
        case CancelledError():
            return CLIENT_LEFT, "invalid_request_error", "cancelled"
        case _:
            return 500, "server_error", "internal_error"


def body(message: str, type_: str, code: str, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error answer."""
    # A message may quote what a client sent, and JSON can spell text that has no UTF-8.
    message = message.encode(errors="replace").decode()
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def text_of(error: EngineError) -> str:
    """Return message and hint as one line."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def answer(error: EngineError, *, retry_after: int | None = None) -> JSONResponse:
    """Return the HTTP answer to a request that failed with `error`."""
    status, type_, code = status_of(error)
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return JSONResponse(body(text_of(error), type_, code), status, headers)


async def on_engine_error(_: Request, error: Exception) -> Response:
    """Answer an `EngineError` that an endpoint raised."""
    assert isinstance(error, EngineError)
    return answer(error)


async def on_validation_error(_: Request, error: Exception) -> Response:
    """Answer a body that is not what the endpoint takes."""
    assert isinstance(error, RequestValidationError)
    # A union reports every member that it tried; what is said twice helps nobody.
    problems = list(dict.fromkeys(_problem(one) for one in error.errors()))
    param = problems[0][0]
    message = "; ".join(f"`{where}`: {what}" if where else what for where, what in problems)
    return JSONResponse(body(message, "invalid_request_error", "invalid_value", param), 400)


def _problem(error: Any) -> tuple[str | None, str]:
    """Where and what of one problem that pydantic found."""
    parts = [str(part) for part in error["loc"] if part != "body"]
    unknown = parts.pop() if error["type"] == "extra_forbidden" else None
    # A union adds the name of each member that it tried, which is no field of the client's.
    fields = [part for part in parts if part != "str" and "[" not in part]
    where = ".".join(fields if unknown is None else [*fields, unknown])
    match error["type"]:
        case "json_invalid":
            return None, f"the body is not JSON: {error['ctx']['error']}"
        case "missing" if not where:
            return None, "the request has no JSON body"
        case "model_attributes_type" | "model_type" | "dict_type" if not where:
            return None, "the body must be a JSON object, with `content-type: application/json`"
        case "extra_forbidden":
            return where, "unknown field"
        case _:
            return where or None, str(error["msg"]).removeprefix("Value error, ")


async def on_http_error(_: Request, error: Exception) -> Response:
    """Answer an unknown path or method, and a body that can't even be parsed."""
    assert isinstance(error, HTTPException)
    codes = {
        400: "invalid_value",
        404: "not_found",
        405: "method_not_allowed",
        408: "body_too_late",
        413: "body_too_large",
        503: "unavailable",
    }
    code = codes.get(error.status_code, "error")
    message = str(error.detail)
    if error.status_code == 400:
        # FastAPI says no more where bytes are no UTF-8, or nested or long beyond all measure.
        message = "the body is not JSON that can be read"
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return JSONResponse(body(message, kind, code), error.status_code, error.headers)


async def on_crash(_: Request, error: Exception) -> Response:
    """Answer what should not happen; the log has the details."""
    content = body(f"internal error: {type(error).__name__}", "server_error", "internal_error")
    return JSONResponse(content, CRASHED)
