"""The requests that run together, and the rounds that serve them.

A round is: draft, build, verify, accept, commit. The device leads it (`device_round.py`) or the
host (`host_round.py`), and the tokens are the same.

Every mode is a tree. Autoregressive decoding verifies a tree of one node, linear speculation the
drafter's chain, tree speculation the best-first tree of its marginals; shadow decodes with the
chain and records what trees would have accepted. There is one verify path and one commit path, so
what holds for one mode holds for all.

A prompt is read a piece at a time, each in one causal pass that commits it (`target/prefill.py`).
Its last token is not committed but becomes the first anchor, and each round then emits at least one
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ddtree_engine import tuned_budgets
from ddtree_engine.admission import check_request
from ddtree_engine.budget_tuner import BudgetTuner
from ddtree_engine.cache_rows import CacheRows
from ddtree_engine.config import check_fit
from ddtree_engine.device_memory import step_within_memory
from ddtree_engine.device_round import DeviceRound
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.errors import EngineError
from ddtree_engine.host_round import HostRound
from ddtree_engine.rehearsal import rehearse
from ddtree_engine.round_pipeline import DEPTH, RoundPipeline
from ddtree_engine.round_shapes import RoundShape, RoundShapes
from ddtree_engine.sequence import PREFILL_CHUNK, Mode, Sequence, Speculation
from ddtree_engine.shadow import ShadowEvidence
from ddtree_engine.stages import StageClock
from ddtree_engine.target import TargetModel
from ddtree_engine.tree_batch import TreeBatch

RecurrentState = Literal["exact", "leak"]


class Decoder:
    """Runs rounds for the requests that it holds, all in one batch.

    Attributes:
        sequences: these requests, each at the index of its cache row (`cache_rows.py`).
        rows: requests that can run at once.
        max_length: tokens of one request, prompt and `max_tokens` together.
        tuner: chooses the budget of requests that leave it open; without one they have their most.
        pipeline: rounds in flight, where the device leads them.
        clock: seconds of each stage so far.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: DrafterModel | None,
        *,
        rows: int = 1,
        max_length: int,
        recurrent_state: RecurrentState = "exact",
        device_rounds: bool = False,
    ) -> None:
        """Reserve the caches.

        Args:
            target: the model whose tokens are emitted.
            drafter: proposes; without one only `ar` runs.
            rows: requests that can run at once.
            max_length: tokens of one request, prompt and `max_tokens` together.
            recurrent_state: "leak" lets siblings see each other's recurrent state, the unsafe
                shortcut; for experiments that measure what it costs.
            device_rounds: whether rounds run without the host (`device_round.py`), their results
                being read one round late. Batches with a shadow request, and leaking ones, are
                always led by the host.

        Raises:
            CheckpointError: the drafter does not fit.
            CapacityError: there is not enough memory.
        """
        if drafter is not None:
            check_fit(drafter.config, target.config)
        self.target, self.drafter = target, drafter
        self.recurrent_state = recurrent_state
        self.rows, self.max_length = rows, max_length
        self.device = target.embed_tokens.weight.device
        # The last round of a request may commit drafts beyond those that it still emits, and one
        # more round may run before its end is seen.
        block = 1 if drafter is None else drafter.config.block_size
        self._cache_rows = CacheRows(
            target.config,
            None if drafter is None else drafter.config,
            count=rows,
            max_length=max_length,
            overrun=block - 1 + (block * (DEPTH - 1) if device_rounds else 0),
            dtype=target.embed_tokens.weight.dtype,
            device=self.device,
        )
        self.sequences = self._cache_rows.sequences
        self.cache, self.drafter_cache = self._cache_rows.cache, self._cache_rows.drafter_cache
        self.state = self._cache_rows.state
        self._shapes = RoundShapes(
            rows=rows,
            room=self.cache.max_length,
            chain=block - 1,
            vocab_size=target.config.vocab_size,
        )
        self.pipeline: RoundPipeline | None = None
        if device_rounds and recurrent_state == "exact":
            # Not a method of this object: in a cycle, caches would outlive their last user.
            make = partial(DeviceRound, target, drafter, self.cache, self.drafter_cache, self.state)
            self.pipeline = RoundPipeline(make, self.state)
            for cache in self._cache_rows.caches:
                cache.unread = DEPTH * block
        self.tuner: BudgetTuner | None = None
        self.clock = StageClock()
        self.host_round = HostRound(
            target,
            drafter,
            self.cache,
            self.drafter_cache,
            self.clock,
            leak=recurrent_state == "leak",
        )

    def rehearse(self, *, budget: int, topk: int) -> None:
        """Run the largest steps that requests may ask for, on nothing (`rehearsal.py`).

        From then on rounds come in a few shapes only, each the next larger one.

        Args:
            budget: the largest of a request.
            topk: the most candidates a depth.

        Raises:
            CapacityError: there is not enough memory.
        """
        largest = self._shapes.largest(budget=budget, topk=topk)
        if self.pipeline is not None:
            prepare: Callable[[RoundShape], object] = self.pipeline.prepare
        else:
            prepare = self._run_once
        append = partial(self.host_round.append, speculating=self.drafter is not None)
        rehearse(largest, self._cache_rows, append, prepare)
        self._shapes.settle(largest)

    def _run_once(self, shape: RoundShape) -> None:
        with self.state.paused():
            self.device_round(shape)()

    @property
    def free(self) -> int:
        """How many more requests can start."""
        return self._cache_rows.free

    def check(self, sequence: Sequence) -> None:
        """Refuse a request that could not run to its end (`admission.py`).

        Raises:
            RequestError: it could not.
        """
        check_request(
            sequence,
            context=self.max_length,
            vocab_size=self.target.config.vocab_size,
            drafter=self.drafter is not None,
        )

    def start(self, sequence: Sequence) -> None:
        """Give a request its row. Its prompt is committed by `prefill`.

        Raises:
            RequestError: as `check`.
            CapacityError: no row is free.
        """
        self.check(sequence)
        self._cache_rows.take(sequence)
        if sequence.speculation.mode is Mode.SHADOW:
            sequence.shadow = ShadowEvidence()
        if sequence.decoding:
            self._decode_from_now_on(sequence)

    def stop(self, sequence: Sequence) -> None:
        """Free the row of a request, finished or not."""
        self._cache_rows.release(sequence)

    def _decode_from_now_on(self, sequence: Sequence) -> None:
        tuned_budgets.begin(self.tuner, sequence)
        self._cache_rows.let_decode(
            sequence,
            budget=self._shapes.nodes(sequence),
            width=self._shapes.candidates(sequence),
        )

    @torch.inference_mode()
    def prefill(self, sequence: Sequence) -> None:
        """Commit the next piece of the prompt of a request that is not yet decoding.

        Raises:
            OutOfMemoryError: nothing is committed. With fewer requests the piece may have memory.
        """
        with self.clock.timed("prefill"), self._step():
            end = min(sequence.prefilled + PREFILL_CHUNK, len(sequence.prompt) - 1)
            piece = sequence.prompt[sequence.prefilled : end]
            tokens = torch.tensor([list(piece)], device=self.device)
            drafts = sequence.speculation.drafts
            self.host_round.append(tokens, sequence.row, speculating=drafts)
            sequence.prefilled = end
        if sequence.decoding:
            self._decode_from_now_on(sequence)

    @torch.inference_mode()
    def next_logits(self, tokens: SequenceOf[int]) -> Tensor:
        """Float32 logits [V] of the token after `tokens`, as autoregressive decoding sees them.

        Raises:
            CapacityError: no row is free.
        """
        probe = Sequence(tokens, 1, speculation=Speculation(Mode.AR))
        self.start(probe)
        try:
            while not probe.decoding:
                self.prefill(probe)
            batch = TreeBatch.chain(
                torch.tensor([[probe.anchor]], device=self.device),
                conv_kernel=self.target.conv_kernel,
            )
            found = self.target.verify(batch, self.cache, slice(probe.row, probe.row + 1))
            return self.target.logits(found.hidden)[0, 0]
        finally:
            self.stop(probe)

    @torch.inference_mode()
    def round(self) -> list[tuple[Sequence, list[int]]]:
        """Run one round for every request that decodes.

        Returns:
            Each of them with the tokens that it emitted. A request that has ended has a
            `finish_reason` and keeps its row until `stop`. One that has just begun to decode may
            not be among them yet: rounds on the device are told of one round late.

        Raises:
            OutOfMemoryError: this round has no memory. With fewer requests the next one may have.
        """
        with self._step():
            return self._round()

    def _round(self) -> list[tuple[Sequence, list[int]]]:
        running = self._cache_rows.decoding
        unfinished = [one.finish_reason is None for one in running]
        if not all(unfinished):
            raise EngineError("a finished request is still in its row: call `stop` first")
        if self.pipeline is None:
            return self._host_round(running) if running else []
        if any(one.speculation.mode is Mode.SHADOW for one in running):
            while len(self.pipeline):
                if outcome := self._read(self.pipeline):
                    return outcome
            outcome = self._host_round(running)
            for one in running:
                self.state.lengths[one.row] = self.cache.lengths[one.row]
                self.state.anchors[one.row] = one.anchor
            return outcome
        with self.clock.timed("round"):
            while True:
                while running and len(self.pipeline) < DEPTH:
                    tuned_budgets.choose(self.tuner, running, self.state)
                    self.pipeline.launch(self.round_shape(running), running)
                if not len(self.pipeline):
                    return []
                if outcome := self._read(self.pipeline):
                    return outcome

    def _host_round(self, running: list[Sequence]) -> list[tuple[Sequence, list[int]]]:
        tuned_budgets.choose(self.tuner, running, self.state)
        outcome = self.host_round(running)
        for one in running:
            if one.finish_reason != "failed":
                tuned_budgets.learn(self.tuner, one, one.budget, one.path)
        return outcome

    def _read(self, pipeline: RoundPipeline) -> list[tuple[Sequence, list[int]]]:
        """What the oldest round in flight gave to the requests that are still here."""
        outcome = []
        for one, tokens, sound, path, budget in pipeline.read():
            if one.row < 0 or one.finish_reason is not None:
                continue
            for cache in self._cache_rows.caches:
                cache.advance(one.row, len(tokens))
            if sound:
                tuned_budgets.learn(self.tuner, one, budget, path)
            else:
                one.finish_reason = "failed"
            outcome.append((one, one.take(tokens) if sound else []))
        return outcome

    def round_shape(self, running: SequenceOf[Sequence]) -> RoundShape:
        """The shape of the round that serves them all."""
        longest = max(self.cache.lengths[: len(running)]) + self.cache.unread
        return self._shapes.of(running, longest)

    def _step(self) -> AbstractContextManager[None]:
        return step_within_memory(len(self.sequences), self.device)

    @contextmanager
    def led_by_host(self) -> Iterator[None]:
        """Rounds meanwhile are led by the host, whatever the decoder was made for.

        No request may be running at the beginning or at the end.
        """
        kept, self.pipeline = self.pipeline, None
        try:
            yield
        finally:
            self.pipeline = kept

    def device_round(self, shape: RoundShape) -> DeviceRound:
        """A round of a shape over the caches."""
        return DeviceRound(
            self.target, self.drafter, self.cache, self.drafter_cache, self.state, shape
        )
