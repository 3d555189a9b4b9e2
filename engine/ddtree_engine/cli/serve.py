"""`ddtree-engine serve`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ddtree_engine.cli.model_arguments import (
    add_model_arguments,
    add_rounds_argument,
    budget,
    drafter_name,
)
from ddtree_engine.config import check_fit
from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.server.logs import LEVELS, configure
from ddtree_engine.server.settings import Settings, read_api_keys

SUMMARY = "Serve a model over HTTP, compatible with OpenAI's API."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serve`."""
    add_model_arguments(parser)
    add_rounds_argument(parser)
    speculation = parser.add_argument_group("speculation")
    speculation.add_argument(
        "--mode",
        choices=["ar", "linear", "shadow", "tree"],
        default="tree",
        help="how requests speculate that do not say (default tree)",
    )
    speculation.add_argument(
        "--budget",
        type=budget,
        default=16,
        metavar="N|auto",
        help="nodes of a tree besides its root, for requests that do not say, and their most "
        "(default 16); auto chooses by what rounds cost here and what requests accept",
    )
    speculation.add_argument(
        "--topk", type=int, default=8, metavar="K", help="candidates a depth (default 8)"
    )
    speculation.add_argument(
        "--recurrent-state",
        choices=["exact", "leak"],
        default="exact",
        help="leak reproduces, for measurements, the shortcut that gives wrong text in tree mode",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    server.add_argument(
        "--port", type=int, default=30001, help="0 takes a free one (default 30001)"
    )
    server.add_argument(
        "--max-running", type=int, default=4, metavar="N", help="requests in a batch (default 4)"
    )
    server.add_argument(
        "--max-queue",
        type=int,
        default=64,
        metavar="N",
        help="requests that may wait; more get 429 (default 64)",
    )
    server.add_argument(
        "--max-context",
        type=int,
        metavar="TOKENS",
        help="prompt and completion of one request together; by default what the model was made "
        "for, 8192 at most",
    )
    server.add_argument(
        "--served-model-name", metavar="NAME", help="name in the API (default: the folder's name)"
    )
    server.add_argument(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time that running requests have after SIGTERM (default 30)",
    )
    server.add_argument(
        "--api-key-file",
        type=Path,
        metavar="PATH",
        help="keys that clients may use, one a line; /health, /ready and /metrics stay open",
    )
    server.add_argument("--log-level", choices=LEVELS, default="info")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code.

    Raises:
        EngineError: settings, port or models that can't work. What needs no weights is checked
            first, before PyTorch is even imported.
    """
    settings = _settings(arguments)
    _check_models(settings)

    from ddtree_engine.server.listener import listen
    from ddtree_engine.server.open_files import raise_limit

    raise_limit()
    with listen(settings.host, settings.port) as listener:
        configure(arguments.log_level)
        from ddtree_engine.server.process import serve

        return serve(replace(settings, port=listener.getsockname()[1]), listener)


def _settings(arguments: argparse.Namespace) -> Settings:
    name = arguments.served_model_name
    if name is None:
        bundled = arguments.model == "bundled"
        name = "ddtree-demo" if bundled else Path(arguments.model).resolve().name
    keys = read_api_keys(arguments.api_key_file) if arguments.api_key_file is not None else ()
    return Settings(
        model=arguments.model,
        drafter=drafter_name(arguments),
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        mode=arguments.mode,
        budget=arguments.budget,
        topk=arguments.topk,
        host=arguments.host,
        port=arguments.port,
        max_running=arguments.max_running,
        max_queue=arguments.max_queue,
        max_context=arguments.max_context,
        served_model_name=name,
        drain_timeout=arguments.drain_timeout,
        recurrent_state=arguments.recurrent_state,
        rounds=arguments.rounds,
        api_keys=keys,
    )


def _check_models(settings: Settings) -> None:
    """Read what is cheap to read: a wrong path should fail in a moment."""
    if settings.model == "bundled":
        return
    target = read_target_config(Path(settings.model))
    if settings.drafter not in (None, "bundled"):
        assert settings.drafter is not None
        check_fit(read_drafter_config(Path(settings.drafter)), target)
