"""A request's way to the scheduler and its events' way back into the event loop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from ddtree_engine.budget_tuner import Budget
from ddtree_engine.errors import EngineError, RequestError
from ddtree_engine.job import Event, Job, Outcome
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.scheduler import Scheduler
from ddtree_engine.sequence import Mode, Sequence, Speculation
from ddtree_engine.server.protocol import ChatRequest, CompletionRequest
from ddtree_engine.server.service import Service
from ddtree_engine.shadow import SHAPES, ShadowSummary
from ddtree_engine.text_stream import TextStream

# Random seeds stay exact in JSON readers that know only doubles.
SEED_BITS = 53


@dataclass(frozen=True)
class Generation:
    """A job that has been submitted, and its events.

    Attributes:
        job: in the scheduler.
        scheduler: its owner.
        first: its first event.
        events: those that follow.
        block_size: of the drafter; 1 without one.
    """

    job: Job
    scheduler: Scheduler
    first: Event
    events: asyncio.Queue[Event]
    block_size: int

    async def stream(self) -> AsyncIterator[Event]:
        """Yield the events; leaving early cancels the job."""
        event = self.first
        try:
            while True:
                yield event
                if not isinstance(event, str):
                    return
                event = await self.events.get()
        finally:
            self.scheduler.cancel(self.job)

    def extension(self, outcome: Outcome) -> dict[str, Any]:
        """Return the `ddtree` field of the answer."""
        speculation = self.job.sequence.speculation
        return {
            "mode": speculation.mode.value,
            "budget": _budget(speculation, self.block_size),
            "topk": speculation.topk,
            "seed": self.job.sequence.sampling.seed,
            "rounds": outcome.rounds,
            "acceptance_length": outcome.acceptance_length,
            "decode_seconds": outcome.decode_seconds,
            "shadow": None if outcome.shadow is None else _evidence(outcome.shadow),
        }


def usage(outcome: Outcome) -> dict[str, int]:
    """Return OpenAI's `usage` of a finished request."""
    return {
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "total_tokens": outcome.prompt_tokens + outcome.completion_tokens,
    }


async def generate(
    service: Service,
    http: Request,
    asked: CompletionRequest | ChatRequest,
    prompt: str | list[int],
) -> Generation:
    """Submit a request and wait for its first event; a client that leaves cancels it from then on.

    Raises:
        EngineError: it was refused, or failed before it gave any text.
    """
    engine, scheduler = service.require()
    if isinstance(prompt, str) and not engine.tokenizer.may_fit(prompt, scheduler.context):
        # Megabytes would keep a core busy for half a minute, only to be refused.
        raise RequestError(
            f"a prompt of {len(prompt)} characters leaves no room in the context of "
            f"{scheduler.context} tokens",
            hint="shorten the prompt",
        )
    # Long texts take a while; the event loop has other clients.
    ids = (
        await asyncio.to_thread(engine.tokenizer.encode, prompt)
        if isinstance(prompt, str)
        else prompt
    )
    stop_ids = frozenset[int]() if asked.ignore_eos else engine.tokenizer.eos_ids
    sequence = Sequence(
        ids,
        _limit(asked.limit, len(ids), scheduler.context),
        _sampling(asked),
        service.speculation(asked.ddtree),
        stop_ids,
    )
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def deliver(event: Event) -> None:
        # Once the event loop is closed, nobody waits for an answer any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(events.put_nowait, event)

    job = Job(
        sequence,
        TextStream(engine.tokenizer.decode, asked.stop),
        deliver,
        as_served=sequence.speculation == service.speculation(None),
    )
    scheduler.submit(job)
    watcher = asyncio.create_task(_cancel_when_client_leaves(http, scheduler, job))
    http.state.watcher = watcher  # the event loop holds tasks weakly
    try:
        first = await events.get()
    except asyncio.CancelledError:
        scheduler.cancel(job)
        raise
    if isinstance(first, EngineError):
        raise first
    block = engine.drafter.config.block_size if engine.drafter is not None else 1
    return Generation(job, scheduler, first, events, block)


async def _cancel_when_client_leaves(http: Request, scheduler: Scheduler, job: Job) -> None:
    # The body has been read, so the next message is the end: of the client, or of our answer.
    while (await http.receive())["type"] != "http.disconnect":
        pass
    scheduler.cancel(job)


def _limit(asked: int | None, prompt: int, context: int) -> int:
    """Tokens to emit at most; without a wish, as many as fit."""
    if asked is not None:
        return asked
    if prompt >= context:
        raise RequestError(
            f"{prompt} prompt tokens leave no room in the context of {context} tokens",
            hint="shorten the prompt",
        )
    return context - prompt


def _sampling(asked: CompletionRequest | ChatRequest) -> SamplingParams:
    """Sampling parameters with OpenAI's defaults; a seed that is not given is drawn."""
    return SamplingParams(
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_k=max(0, asked.top_k) if asked.top_k == -1 else asked.top_k or 0,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        seed=secrets.randbits(SEED_BITS) if asked.seed is None else asked.seed,
    )


def _budget(speculation: Speculation, block_size: int) -> Budget:
    """Nodes besides the root that a round verifies."""
    match speculation.mode:
        case Mode.AR:
            return 0
        case Mode.TREE:
            return "auto" if speculation.auto else speculation.budget
        case Mode.LINEAR | Mode.SHADOW:
            return block_size - 1


def _evidence(summary: ShadowSummary) -> dict[str, Any]:
    return {
        "rounds": summary.rounds,
        "censored": summary.censored,
        "acceptance_length": {shape: summary.mean(shape) for shape in SHAPES},
        "histograms": {
            shape: {str(length): count for length, count in summary.histograms[shape].items()}
            for shape in SHAPES
        },
    }
