"""What happens to every HTTP request, in the application itself."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ddtree_engine.server.app import create_app
from ddtree_engine.server.service import Service
from ddtree_engine.server.settings import Settings


def application(**options: Any) -> FastAPI:
    settings = Settings(model="bundled", drafter="bundled", served_model_name="m", **options)
    return create_app(Service(settings))


def get(app: FastAPI, path: str, authorization: bytes | None = None) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            headers = {} if authorization is None else {b"authorization": authorization}
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


def test_a_crash_counts_as_the_500_that_it_is() -> None:
    app = application()

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a bug")

    answer = get(app, "/broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error: RuntimeError"
    counted = get(app, "/metrics").text.splitlines()
    assert 'ddtree_http_requests_total{path="other",status="500"} 1.0' in counted
    assert not [line for line in counted if 'status="499"' in line]


@pytest.mark.parametrize("key", ["plain", "ключ", "ü\u00a0"])
def test_a_key_may_be_any_text(key: str) -> None:
    app = application(api_keys=(key,))
    assert get(app, "/v1/models", b"Bearer " + key.encode()).status_code == 200
    assert get(app, "/v1/models", b"bearer  " + key.encode()).status_code == 200
    for wrong in (b"", b"Bearer", b"Bearer " + key.encode()[:-1], b"Basic " + key.encode()):
        assert get(app, "/v1/models", wrong).status_code == 401
    assert get(app, "/v1/models").status_code == 401
