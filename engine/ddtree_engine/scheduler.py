"""Continuous batching: one thread that owns the decoder, and the queue in front of it.

The loop alternates one piece of one prompt with one round for all requests that decode, so that a
long prompt delays the others by a piece at most. Other threads reach the loop through `submit`,
`cancel`, `drain` and `stop`; what it has to say goes to the `deliver` of each job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from threading import Condition
from time import monotonic, perf_counter
from typing import Literal

from ddtree_engine.decoder import Decoder
from ddtree_engine.errors import CapacityError, EngineError, NotFiniteError, OutOfMemoryError
from ddtree_engine.job import CancelledError, Event, Job, Outcome
from ddtree_engine.metrics import Metrics

IDLE_SECONDS = 0.5
"""Longest time between two heartbeats of a loop that has nothing to do."""


class QueueFullError(CapacityError):
    """The queue is full; the server answers 429."""


class UnavailableError(EngineError):
    """The engine takes no requests: not yet, or no longer; the server answers 503."""


class State(StrEnum):
    """Where the loop is in its life."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class Scheduler:
    """Queue, rows and decode loop. `run` belongs to one thread; the other methods to any."""

    def __init__(
        self,
        decoder: Decoder,
        metrics: Metrics,
        *,
        max_queue: int,
        on_beat: Callable[[], None] = lambda: None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Take over the decoder.

        Args:
            decoder: used by nobody else from now on.
            metrics: counts.
            max_queue: requests that may wait while all rows are taken.
            on_beat: called by the loop each time it has made progress, or found nothing to do.
            idle_seconds: longest time between two beats of an idle loop.
        """
        self._decoder = decoder
        self._metrics = metrics
        self._max_queue = max_queue
        self._on_beat = on_beat
        self._idle_seconds = idle_seconds
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._changed = Condition()
        self._beat_at = monotonic()
        self.state = State.RUNNING

    @property
    def rows(self) -> int:
        """Requests that can run at once."""
        return self._decoder.rows

    @property
    def context(self) -> int:
        """Tokens that a prompt and its completion may have together."""
        return self._decoder.max_length

    @property
    def budget_in_use(self) -> int | None:
        """The budget that the tuner has decided on; None without one."""
        tuner = self._decoder.tuner
        return None if tuner is None else tuner.in_use

    @property
    def rounds_led_by(self) -> Literal["host", "device"]:
        """What leads the rounds."""
        return "host" if self._decoder.pipeline is None else "device"

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        with self._changed:  # one that changes from the one to the other counts
            return len(self._waiting) + len(self._running)

    def heartbeat_age(self) -> float:
        """Seconds since the loop last came round."""
        return monotonic() - self._beat_at

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue.

        Raises:
            RequestError: the request could not run to its end (see `Decoder.check`).
            QueueFullError: all rows and all places in the queue are taken.
            UnavailableError: the scheduler is draining, stopped or has failed.
        """
        self._decoder.check(job.sequence)
        with self._changed:
            if self.state is not State.RUNNING:
                raise _unavailable(self.state)
            room = self.rows - len(self._running) + self._max_queue
            if len(self._waiting) >= room:
                raise QueueFullError(
                    f"{len(self._running)} requests run and {len(self._waiting)} wait: "
                    "the queue is full",
                    hint="try again later, or start the server with a larger --max-queue",
                )
            self._waiting.append(job)
            self._metrics.queue_length.set(len(self._waiting))
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Give up a job: its place is free before the next round. Ended jobs are left alone."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    def retry_seconds(self) -> int:
        """Estimate when a place in a full queue is free, from the mean time of past requests."""
        totals = self._metrics.totals
        mean = totals.request_seconds / totals.requests if totals.requests else 1.0
        return min(60, max(1, round(mean / self.rows)))

    def drain(self) -> None:
        """Take no more requests; those already taken are finished."""
        with self._changed:
            if self.state is State.RUNNING:
                self.state = State.DRAINING

    def stop(self) -> None:
        """End the loop before its next step; unfinished requests fail as unavailable."""
        with self._changed:
            if self.state is not State.FAILED:
                self.state = State.STOPPED
            self._changed.notify()

    def run(self) -> None:
        """Decode until `stop`. An error that no single request can be blamed for ends the loop."""
        try:
            while self._wait_for_work():
                self._step()
                self._beat()
            self._abandon(_unavailable(State.STOPPED))
        except BaseException as error:
            with self._changed:
                self.state = State.FAILED
            self._abandon(EngineError(f"the decode loop failed: {error}", hint="see the log"))
            raise

    def _wait_for_work(self) -> bool:
        with self._changed:
            while self.state is not State.STOPPED and not self.unfinished:
                self._changed.wait(self._idle_seconds)
                self._beat()
            return self.state is not State.STOPPED

    def _beat(self) -> None:
        self._beat_at = monotonic()
        self._on_beat()

    def _step(self) -> None:
        self._drop_cancelled()
        self._admit()
        prefilling = next((job for job in self._running if not job.sequence.decoding), None)
        try:
            if prefilling is not None:
                self._decoder.prefill(prefilling.sequence)
            begin = perf_counter()
            results = self._decoder.round()
        except OutOfMemoryError as error:
            # Those that ran before it had what they need.
            self._end(self._running[-1], "failed", error)
            return
        seconds = perf_counter() - begin if results else 0.0
        jobs = {id(job.sequence): job for job in self._running}
        for sequence, tokens in results:
            job = jobs[id(sequence)]
            job.decode_seconds += seconds
            if sequence.finish_reason == "failed":
                self._end(job, "failed", NotFiniteError())
            else:
                self._advance(job, tokens, sequence.finish_reason)
        if results and self._decoder.tuner is not None:
            self._metrics.observe_budgets(self._decoder.tuner)
        counted = any(jobs[id(sequence)].as_served for sequence, _ in results)
        self._metrics.observe_decoding(seconds, self._decoder.clock.seconds, as_served=counted)

    def _drop_cancelled(self) -> None:
        with self._changed:
            gone = [job for job in self._waiting if job.cancelled]
            for job in gone:
                self._waiting.remove(job)
            self._metrics.queue_length.set(len(self._waiting))
        gone += [job for job in self._running if job.cancelled]
        for job in gone:
            self._end(job, "cancelled", CancelledError("the request was cancelled"))

    def _admit(self) -> None:
        while self._decoder.free:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
                self._running.append(job)
                self._metrics.queue_length.set(len(self._waiting))
                self._metrics.running.set(len(self._running))
            self._decoder.start(job.sequence)
            self._metrics.queue_seconds.observe(monotonic() - job.arrived)
            self._metrics.prompt_tokens.inc(len(job.sequence.prompt))

    def _advance(
        self, job: Job, tokens: list[int], ended: Literal["stop", "length"] | None
    ) -> None:
        """Pass on what a round gave a job, and end it if that was its end."""
        if not job.completion_tokens:
            self._metrics.first_token_seconds.observe(monotonic() - job.arrived)
        # The token that ends a text is not part of it.
        by_token = ended == "stop"
        before = job.text.consumed
        piece = job.text.feed(tokens[:-1] if by_token else tokens)
        used = job.text.consumed - before + (by_token and not job.text.stopped)
        job.completion_tokens += used
        self._metrics.observe_round(job.mode, used, as_served=job.as_served)
        reason = "stop" if job.text.stopped else ended
        if reason is not None:
            piece += job.text.finish()
        if piece:
            job.deliver(piece)
        if reason is not None:
            self._end(job, reason, self._outcome(job, reason))

    def _outcome(self, job: Job, reason: Literal["stop", "length"]) -> Outcome:
        sequence = job.sequence
        shadow = None
        if sequence.shadow is not None:
            # A stop string ends a request that the decoder would have gone on with.
            sequence.shadow.resolve([*sequence.prompt, *sequence.emitted], finished=True)
            shadow = sequence.shadow.summary()
            self._metrics.observe_shadow(shadow)
        return Outcome(
            finish_reason=reason,
            prompt_tokens=len(sequence.prompt),
            completion_tokens=job.completion_tokens,
            rounds=sequence.rounds,
            decode_seconds=job.decode_seconds,
            shadow=shadow,
        )

    def _end(self, job: Job, outcome: str, event: Event) -> None:
        if job in self._running:
            self._decoder.stop(job.sequence)
            with self._changed:
                self._running.remove(job)
                self._metrics.running.set(len(self._running))
        self._metrics.observe_end(job.mode, outcome, monotonic() - job.arrived)
        job.deliver(event)

    def _abandon(self, error: EngineError) -> None:
        """End every job with `error`; the decoder is not touched, it may be what failed."""
        with self._changed:
            jobs = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
            self._metrics.running.set(0)
            self._metrics.queue_length.set(0)
        for job in jobs:
            self._metrics.observe_end(job.mode, "failed", monotonic() - job.arrived)
            job.deliver(error)


def _unavailable(state: State) -> UnavailableError:
    if state is State.FAILED:
        return UnavailableError("the decode loop has failed", hint="see the server's log")
    return UnavailableError(
        "the server is shutting down", hint="send the request again once it is back"
    )
