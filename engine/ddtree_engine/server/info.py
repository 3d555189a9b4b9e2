"""GET /health, /ready, /server_info and /metrics: what operators and their tools ask."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response
from torch import nn

from ddtree_engine import __version__
from ddtree_engine.engine import Engine
from ddtree_engine.metrics import Totals
from ddtree_engine.scheduler import Scheduler
from ddtree_engine.server.build import build, versions
from ddtree_engine.server.service import Phase, Service

SECOND_LOOK_SECONDS = 0.5
"""From a heartbeat that looks too old to the look that counts."""


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Response:
        """Tell whether the decode loop comes round. Never generates."""
        if service.phase is Phase.STARTING:
            return JSONResponse({"status": "starting", "heartbeat_age_seconds": None}, 503)
        alive, age = service.heartbeat()
        if not alive and service.failure is None:
            # After the whole process was paused, the loop needs a moment to come round as well.
            await asyncio.sleep(SECOND_LOOK_SECONDS)
            alive, age = service.heartbeat()
        status = "ok" if alive else "failed" if service.failure is not None else "stuck"
        return JSONResponse({"status": status, "heartbeat_age_seconds": age}, 200 if alive else 503)

    @routes.get("/ready")
    async def ready() -> Response:
        """Tell whether requests are taken."""
        phase = service.phase
        return JSONResponse({"status": phase.value}, 200 if phase is Phase.READY else 503)

    @routes.get("/server_info")
    async def server_info() -> Response:
        """Tell what runs, and what it has done so far."""
        engine, scheduler = service.require()
        return JSONResponse(_describe(service, engine, scheduler))

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Return Prometheus metrics."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes


def _describe(service: Service, engine: Engine, scheduler: Scheduler) -> dict[str, Any]:
    settings = service.settings
    drafter = engine.drafter
    return {
        "engine": "ddtree-engine",
        "version": __version__,
        "build": build(),
        "pid": os.getpid(),
        "started_at": service.started_at.isoformat(),
        "mode": settings.mode,
        "budget": settings.budget,
        "budget_in_use": scheduler.budget_in_use or settings.budget,
        "topk": settings.topk,
        "block_size": None if drafter is None else drafter.config.block_size,
        "recurrent_state": settings.recurrent_state,
        "rounds": scheduler.rounds_led_by,
        "backend": engine.backend,
        "device": str(engine.device),
        "dtype": engine.dtype,
        "max_running": settings.max_running,
        "max_queue": settings.max_queue,
        "max_context": scheduler.context,
        "model": {
            "name": settings.served_model_name,
            "path": str(engine.model_path),
            "architecture": engine.target.config.architecture,
            "fingerprint": engine.model_fingerprint,
            "parameters": _parameters(engine.target),
        },
        "drafter": None
        if drafter is None
        else {
            "name": None if engine.drafter_path is None else engine.drafter_path.resolve().name,
            "path": str(engine.drafter_path),
            "architecture": drafter.config.architecture,
            "fingerprint": engine.drafter_fingerprint,
            "parameters": _parameters(drafter),
            "mask_token_id": drafter.config.mask_token_id,
            "target_layer_ids": list(drafter.config.target_layer_ids),
        },
        "versions": versions(),
        "totals": _totals(service.metrics.totals),
    }


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "requests": totals.requests,
        "rounds": totals.rounds,
        "tokens": totals.tokens,
        "acceptance_length": totals.acceptance_length,
        "decode_tokens_per_second": totals.tokens_per_second,
    }


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
