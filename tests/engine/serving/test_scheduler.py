"""Continuous batching around a real decoder of a tiny model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from ddtree_engine.decoder import Decoder
from ddtree_engine.engine import Engine
from ddtree_engine.errors import EngineError, OutOfMemoryError, RequestError
from ddtree_engine.job import CancelledError, Event, Job, Outcome
from ddtree_engine.metrics import Metrics
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.scheduler import QueueFullError, Scheduler, State, UnavailableError
from ddtree_engine.sequence import PREFILL_CHUNK, Mode, Sequence, Speculation
from ddtree_engine.target import TargetModel, Verification
from ddtree_engine.text_stream import TextStream
from ddtree_engine.tree_batch import TreeBatch
from ddtree_engine.warm_up import warm_up
from tests.engine.serving.checkpoint import POISON
from tests.engine.serving.server_process import wait_for

SAMPLED = SamplingParams(temperature=0.8, seed=11)
SPECULATIONS = [
    Speculation(Mode.AR),
    Speculation(Mode.LINEAR),
    Speculation(Mode.SHADOW, topk=4),
    Speculation(Mode.TREE, budget=12, topk=4),
]


class SteppedDecoder(Decoder):
    """A decoder whose rounds wait for permission, one each, so that tests see every step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.permits = threading.Semaphore(0)
        self.at_round = threading.Semaphore(0)
        self.explode = False

    def round(self) -> list[tuple[Sequence, list[int]]]:
        if any(one.decoding for one in self.sequences):
            self.at_round.release()
            self.permits.acquire()
        if self.explode:
            raise RuntimeError("the device is gone")
        return super().round()

    def step(self) -> None:
        """Let one round run and wait until the loop is before the next one."""
        self.permits.release()
        assert self.at_round.acquire(timeout=30)


def no_memory_of_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def no_memory_of_a_cpu() -> None:
    torch.empty(1 << 50, dtype=torch.uint8)


class LowMemory:
    """A target on a device that has memory for two requests a pass."""

    run_out: Callable[[], None] = staticmethod(no_memory_of_a_gpu)

    def __init__(self, target: TargetModel) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def verify(self, batch: TreeBatch, *arguments: Any, **options: Any) -> Verification:
        if len(batch.tokens) > 2:
            self.run_out()
        return self._target.verify(batch, *arguments, **options)


class LowMemoryDecoder(SteppedDecoder):
    """Led by the host, on such a device."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.host_round.target = LowMemory(self.target)  # type: ignore[assignment]


class Client:
    """A job and what came of it."""

    def __init__(
        self,
        engine: Engine,
        prompt: str | list[int],
        max_tokens: int = 30,
        speculation: Speculation = SPECULATIONS[3],
        stops: tuple[str, ...] = (),
        sampling: SamplingParams = SAMPLED,
    ) -> None:
        ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.job = Job(
            Sequence(ids, max_tokens, sampling, speculation, engine.tokenizer.eos_ids),
            TextStream(engine.tokenizer.decode, stops),
            self.events.put,
        )
        self.text = ""

    def end(self) -> Outcome | EngineError:
        while isinstance(event := self.events.get(timeout=60), str):
            self.text += event
        return event

    def outcome(self) -> Outcome:
        end = self.end()
        assert isinstance(end, Outcome), end
        return end


@contextmanager
def running(
    engine: Engine,
    *,
    rows: int = 3,
    max_queue: int = 8,
    max_length: int = 400,
    kind: type[Decoder] = Decoder,
    on_beat: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Scheduler, Any]]:
    decoder = kind(engine.target, engine.drafter, rows=rows, max_length=max_length)
    scheduler = Scheduler(
        decoder, Metrics(), max_queue=max_queue, on_beat=on_beat, idle_seconds=0.01
    )
    failures: list[BaseException] = []

    def run() -> None:
        try:
            scheduler.run()
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield scheduler, decoder
    finally:
        scheduler.stop()
        if isinstance(decoder, SteppedDecoder):
            decoder.permits.release(1000)
        thread.join(60)
        assert not thread.is_alive()


def test_every_mode_gives_the_same_text_in_any_company(engine: Engine) -> None:
    texts = []
    with running(engine) as (scheduler, _):
        clients = [
            Client(engine, prompt, 40, speculation)
            for prompt in ("def f(n):\n", "naïve " * 60)
            for speculation in SPECULATIONS
        ]
        for client in clients:
            scheduler.submit(client.job)
        for client in clients:
            outcome = client.outcome()
            texts.append(client.text)
            assert outcome.completion_tokens <= 40
            assert outcome.decode_seconds > 0
            assert (outcome.shadow is not None) == (client.job.mode == "shadow")
        assert scheduler.unfinished == 0
    assert texts == [texts[0]] * 4 + [texts[4]] * 4
    assert texts[0] != texts[4]


def test_a_stop_string_ends_each_mode_at_the_same_token(engine: Engine) -> None:
    with running(engine) as (scheduler, _):
        free = Client(engine, "def f(n):\n", 60)
        scheduler.submit(free.job)
        whole = free.outcome()
        # Two characters that no single token has: the string spans tokens.
        stop = free.text[20:24]
        ends = []
        for speculation in SPECULATIONS:
            client = Client(engine, "def f(n):\n", 60, speculation, stops=(stop, "never"))
            scheduler.submit(client.job)
            outcome = client.outcome()
            assert outcome.finish_reason == "stop"
            assert client.text == free.text[: free.text.index(stop)]
            ends.append(outcome.completion_tokens)
    assert ends == [ends[0]] * 4
    assert ends[0] < whole.completion_tokens


def test_a_full_queue_refuses_and_a_cancelled_place_is_free_again(engine: Engine) -> None:
    with running(engine, rows=1, max_queue=1, kind=SteppedDecoder) as (scheduler, decoder):
        first, second, third = (Client(engine, "a", 300) for _ in range(3))
        scheduler.submit(first.job)
        assert decoder.at_round.acquire(timeout=30)
        scheduler.submit(second.job)
        with pytest.raises(QueueFullError, match="1 requests run and 1 wait"):
            scheduler.submit(third.job)
        assert scheduler.retry_seconds() >= 1
        scheduler.cancel(second.job)
        decoder.step()
        assert isinstance(second.end(), CancelledError)
        scheduler.submit(third.job)
        scheduler.cancel(first.job)
        decoder.step()
        # The round after the cancellation is already the next request's.
        assert isinstance(first.end(), CancelledError)
        assert list(decoder.sequences) == [third.job.sequence]
        assert len(first.job.sequence.accepted) == 2


def test_free_rows_take_requests_though_nothing_may_wait(engine: Engine) -> None:
    with running(engine, rows=2, max_queue=0, kind=SteppedDecoder) as (scheduler, _):
        for _ in range(2):
            scheduler.submit(Client(engine, "a", 300).job)
        with pytest.raises(QueueFullError):
            scheduler.submit(Client(engine, "a", 300).job)


def test_cancelling_what_has_ended_disturbs_nobody(engine: Engine) -> None:
    with running(engine) as (scheduler, _):
        done = Client(engine, "a", 3)
        scheduler.submit(done.job)
        done.outcome()
        other = Client(engine, "b", 30)
        scheduler.submit(other.job)
        scheduler.cancel(done.job)
        assert other.outcome().completion_tokens > 3


def test_a_long_prompt_goes_in_pieces_between_rounds(engine: Engine) -> None:
    with running(engine, max_length=3000, kind=SteppedDecoder) as (scheduler, decoder):
        short, long = Client(engine, "a", 300), Client(engine, [5] * (2 * PREFILL_CHUNK + 1), 5)
        scheduler.submit(short.job)
        assert decoder.at_round.acquire(timeout=30)
        scheduler.submit(long.job)
        done = []
        while not long.job.sequence.decoding:
            decoder.step()
            done.append(long.job.sequence.prefilled)
        assert done == [PREFILL_CHUNK, 2 * PREFILL_CHUNK]
        assert short.job.sequence.rounds == 2


def test_numbers_that_are_not_finite_fail_their_own_request_only(engine: Engine) -> None:
    with running(engine) as (scheduler, _):
        alone = Client(engine, "def f(n):\n", 60)
        scheduler.submit(alone.job)
        alone.outcome()
        for speculation in SPECULATIONS:
            beside, poisoned, after = (
                Client(engine, "def f(n):\n", 60),
                Client(engine, f"ab{POISON}c" * 30, 60, speculation),
                Client(engine, "def f(n):\n", 60, speculation),
            )
            scheduler.submit(beside.job)
            scheduler.submit(poisoned.job)
            error = poisoned.end()
            assert isinstance(error, EngineError)
            assert "not finite" in error.message
            scheduler.submit(after.job)
            for client in (beside, after):
                client.outcome()
                assert client.text == alone.text


def test_a_last_round_that_accepts_more_than_fits_the_context(engine: Engine) -> None:
    with running(engine, max_length=2000) as (scheduler, _):
        free = Client(engine, "def f(n):\n", 1000, sampling=SamplingParams())
        scheduler.submit(free.job)
        free.outcome()
    accepted = free.job.sequence.accepted
    long_round = next(i for i, tokens in enumerate(accepted) if tokens >= 3)
    tokens = sum(accepted[:long_round]) + 1
    context = len(free.job.sequence.prompt) + tokens
    with running(engine, max_length=context) as (scheduler, _):
        for speculation in SPECULATIONS:
            client = Client(engine, "def f(n):\n", tokens, speculation, sampling=SamplingParams())
            scheduler.submit(client.job)
            assert client.outcome().completion_tokens == tokens
            assert free.text.startswith(client.text)
        with pytest.raises(RequestError, match=f"exceed the context of {context}"):
            scheduler.submit(Client(engine, "def f(n):\n", tokens + 1).job)


def test_the_token_that_ends_a_text_counts_and_is_not_shown(engine: Engine) -> None:
    with running(engine) as (scheduler, _):
        free = Client(engine, "def f(n):\n", 60)
        scheduler.submit(free.job)
        free.outcome()
        emitted = free.job.sequence.emitted
        last = emitted[25]
        first = emitted.index(last)
        for speculation in SPECULATIONS:
            client = Client(engine, "def f(n):\n", 60, speculation)
            client.job.sequence.stop_ids = frozenset({last})
            scheduler.submit(client.job)
            outcome = client.outcome()
            assert outcome.finish_reason == "stop"
            assert outcome.completion_tokens == first + 1
            assert client.text == engine.tokenizer.decode(emitted[:first])


def test_an_error_of_the_loop_itself_fails_everything(engine: Engine) -> None:
    with running(engine, rows=1, kind=SteppedDecoder) as (scheduler, decoder):
        runs, waits = Client(engine, "a"), Client(engine, "b")
        scheduler.submit(runs.job)
        assert decoder.at_round.acquire(timeout=30)
        scheduler.submit(waits.job)
        decoder.explode = True
        decoder.permits.release()
        for client in (runs, waits):
            error = client.end()
            assert isinstance(error, EngineError)
            assert "the device is gone" in error.message
        assert scheduler.state is State.FAILED
        with pytest.raises(UnavailableError, match="failed"):
            scheduler.submit(Client(engine, "c").job)


def test_draining_finishes_what_was_taken(engine: Engine) -> None:
    with running(engine, rows=1, kind=SteppedDecoder) as (scheduler, decoder):
        runs, waits = Client(engine, "a", 4), Client(engine, "b", 4)
        scheduler.submit(runs.job)
        scheduler.submit(waits.job)
        scheduler.drain()
        with pytest.raises(UnavailableError, match="shutting down"):
            scheduler.submit(Client(engine, "c").job)
        decoder.permits.release(100)
        runs.outcome()
        waits.outcome()


@pytest.mark.parametrize("run_out", [no_memory_of_a_gpu, no_memory_of_a_cpu])
def test_who_comes_when_memory_is_short_ends_and_the_others_go_on(
    engine: Engine, run_out: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LowMemory, "run_out", staticmethod(run_out))
    with running(engine) as (scheduler, _):
        alone = [Client(engine, f"{i} = ") for i in range(3)]
        for one in alone:
            scheduler.submit(one.job)
            one.outcome()
    with running(engine, kind=LowMemoryDecoder) as (scheduler, decoder):
        first, second, third = (Client(engine, f"{i} = ") for i in range(3))
        for one in (first, second):
            scheduler.submit(one.job)
        wait_for(lambda: len(decoder.sequences) == 2, "two to run")
        assert decoder.at_round.acquire(timeout=30)
        decoder.step()
        scheduler.submit(third.job)
        decoder.permits.release(1000)
        error = third.end()
        assert isinstance(error, OutOfMemoryError)
        assert "no memory for a step of 3 requests" in str(error)
        for one, expected in zip((first, second), alone, strict=False):
            one.outcome()
            assert one.text == expected.text
        assert scheduler.state is State.RUNNING
        later = Client(engine, "2 = ")
        scheduler.submit(later.job)
        later.outcome()
        assert later.text == alone[2].text


def test_stopping_answers_everyone(engine: Engine) -> None:
    with running(engine, rows=1, kind=SteppedDecoder) as (scheduler, decoder):
        clients = [Client(engine, "a", 300) for _ in range(2)]
        for client in clients:
            scheduler.submit(client.job)
        assert decoder.at_round.acquire(timeout=30)
        scheduler.stop()
        decoder.permits.release()
        for client in clients:
            assert isinstance(client.end(), UnavailableError)


def test_the_heart_beats_when_idle_and_not_when_stuck(engine: Engine) -> None:
    beats = 0

    def count() -> None:
        nonlocal beats
        beats += 1

    with running(engine, kind=SteppedDecoder, on_beat=count) as (scheduler, decoder):
        wait_for(lambda: beats > 5, "an idle loop to beat")
        scheduler.submit(Client(engine, "a").job)
        assert decoder.at_round.acquire(timeout=30)
        stuck_at = beats
        wait_for(lambda: scheduler.heartbeat_age() > 0.2, "the heartbeat to grow old")
        assert beats == stuck_at
        decoder.step()
        assert beats > stuck_at


def test_warm_up_leaves_no_trace(engine: Engine) -> None:
    decoder = Decoder(engine.target, engine.drafter, rows=2, max_length=PREFILL_CHUNK + 100)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    # 4 modes, greedy and sampled, 2 prompt lengths; and a long prompt without and with the drafter.
    assert warm_up(decoder, budget=8, topk=4, on_step=count) == 18
    assert steps > 18
    assert not decoder.sequences
    tiny = Decoder(engine.target, None, rows=1, max_length=2)
    assert warm_up(tiny, budget=8, topk=4) == 2
