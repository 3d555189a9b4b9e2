"""The process of a server: HTTP in the main thread, decoding in another, signals, the way out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from ddtree_engine.errors import EngineError
from ddtree_engine.server.app import create_app
from ddtree_engine.server.connection import Connection
from ddtree_engine.server.open_bodies import OpenBodies
from ddtree_engine.server.open_files import backlog
from ddtree_engine.server.service import Service
from ddtree_engine.server.settings import Settings

FLUSH_SECONDS = 5
"""Time for the last answers to reach their clients once no more are made."""
POLL_SECONDS = 0.02

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: draining comes first here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: Settings, listener: socket.socket) -> int:
    """Serve until a signal, or until the decode thread ends.

    SIGTERM and SIGINT drain: new requests get 503, those already taken are finished, and what is
    left at the drain timeout is cancelled. A second signal ends the process at once.

    Returns:
        0 after draining.

    Raises:
        EngineError: the engine could not be loaded, or its decode loop has failed.
    """
    service = Service(settings)
    asyncio.run(_serve(service, listener))
    ended = service.stop(FLUSH_SECONDS)
    if service.failure is not None:
        raise _failure(service.failure)
    if not ended:
        # Still loading, or stuck in a kernel: there is no other way to end a thread.
        if service.scheduler is None:
            _exit_now(0)
        log.error("the decode loop is stuck: exiting without it")
        _exit_now(1)
    log.info("stopped")
    return 0


async def _serve(service: Service, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ended, asked = asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if asked.is_set():
            log.warning("%s again: exiting at once", number.name)
            _exit_now(1)
        log.info("%s: draining", number.name)
        asked.set()

    def on_end() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop may be closed already
            loop.call_soon_threadsafe(ended.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    bodies = OpenBodies()
    config = uvicorn.Config(
        create_app(service, bodies),
        http=Connection,
        backlog=backlog(),
        lifespan="off",
        log_config=None,
        ws="none",  # there are none here, and no advice to install something for them
        access_log=False,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    http = _Server(config)
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    service.start(on_end)
    waits = [asyncio.create_task(event.wait()) for event in (ended, asked)]
    await asyncio.wait([*waits, serving], return_when=asyncio.FIRST_COMPLETED)
    if asked.is_set():
        await _drain(service, ended)
    bodies.give_up()
    http.should_exit = True
    await serving
    for wait in waits:
        wait.cancel()


async def _drain(service: Service, ended: asyncio.Event) -> None:
    """Let the requests that were taken come to their end, for as long as the settings allow."""
    scheduler, timeout = service.scheduler, service.settings.drain_timeout
    service.notifier.stopping("draining")
    if scheduler is None:
        return
    scheduler.drain()
    deadline = asyncio.get_running_loop().time() + timeout
    while scheduler.unfinished and not ended.is_set():
        if asyncio.get_running_loop().time() > deadline:
            log.warning("%d requests cancelled after %g s", scheduler.unfinished, timeout)
            break
        await asyncio.sleep(POLL_SECONDS)
    # Ends what is left, and so gives its clients an answer.
    scheduler.stop()


def _failure(failure: BaseException) -> EngineError:
    if isinstance(failure, EngineError):
        return failure
    return EngineError(
        f"the decode thread failed: {type(failure).__name__}: {failure}",
        hint="the log lines above say where",
    )


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
