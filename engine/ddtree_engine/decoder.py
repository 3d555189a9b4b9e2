"""The requests that run together, and the rounds that serve them.

A round is: draft, build, verify, accept, commit. The device leads it (`device_round.py`) or the
host (`host_round.py`), and the tokens are the same.

Every mode is a tree. Autoregressive decoding verifies a tree of one node, linear speculation the
drafter's chain, tree speculation the best-first tree of its marginals; shadow decodes with the
chain and records what trees would have accepted. There is one verify path and one commit path, so
what holds for one mode holds for all.

A prompt is a chain whose tokens are accepted beforehand: it goes through the same two paths, a
piece at a time. Its last token is not committed but becomes the first anchor, and each round then
emits at least one token.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ddtree_engine.budget_tuner import BudgetTuner
from ddtree_engine.cache import DrafterCache, TargetCache
from ddtree_engine.config import check_fit
from ddtree_engine.device_round import DeviceRound, RoundShape
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.errors import CapacityError, EngineError, OutOfMemoryError, RequestError
from ddtree_engine.host_round import HostRound
from ddtree_engine.memory_plan import cache_bytes, gibibytes
from ddtree_engine.round_pipeline import (
    BUDGETS,
    DEPTH,
    WIDTHS,
    RoundPipeline,
    bucket,
    context_bucket,
    next_larger,
)
from ddtree_engine.row_state import RowState
from ddtree_engine.sequence import PREFILL_CHUNK, Mode, Sequence, Speculation
from ddtree_engine.shadow import ShadowEvidence
from ddtree_engine.stages import StageClock
from ddtree_engine.target import TargetModel
from ddtree_engine.tree_batch import TreeBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

RecurrentState = Literal["exact", "leak"]


class Decoder:
    """Runs rounds for the requests that it holds, all in one batch.

    Requests sit in consecutive cache rows, those that decode first: a batch is always a slice.
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
        dtype = target.embed_tokens.weight.dtype
        # The last round of a request may commit drafts beyond those that it still emits, and one
        # more round may run before its end is seen.
        block = 1 if drafter is None else drafter.config.block_size
        room = max_length + block - 1 + (block * (DEPTH - 1) if device_rounds else 0)
        self.drafter_cache: DrafterCache | None = None
        try:
            self.cache = TargetCache(
                target.config, rows=rows, max_length=room, dtype=dtype, device=self.device
            )
            if drafter is not None:
                self.drafter_cache = DrafterCache(
                    drafter.config, rows=rows, max_length=room, dtype=dtype, device=self.device
                )
        except (RuntimeError, MemoryError) as error:  # PyTorch's CPU allocator raises the former
            needed = cache_bytes(
                target.config, drafter.config if drafter else None, rows, room, dtype
            )
            raise CapacityError(
                f"there is no memory for the caches of {rows} x {max_length} tokens: they take "
                f"{gibibytes(needed)}{self._free_memory()}",
                hint="ask for a shorter context or for fewer requests at once",
            ) from error
        self.state = RowState(rows, self.device)
        self.pipeline: RoundPipeline | None = None
        if device_rounds and recurrent_state == "exact":
            # Not a method of this object: in a cycle, caches would outlive their last user.
            make = partial(DeviceRound, target, drafter, self.cache, self.drafter_cache, self.state)
            self.pipeline = RoundPipeline(make, self.state)
            for one in (self.cache, self.drafter_cache):
                if one is not None:
                    one.unread = DEPTH * block
        self.tuner: BudgetTuner | None = None
        """Chooses the budget of requests that leave it open; without one they have their most."""
        self._rehearsed: int | None = None  # the largest budget of a request, once it has been run
        self.sequences: list[Sequence] = []
        self.clock = StageClock()
        self.host_round = HostRound(
            target,
            drafter,
            self.cache,
            self.drafter_cache,
            self.clock,
            leak=recurrent_state == "leak",
        )

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"there is no memory for a step of {len(self.sequences)} requests"
                f"{self._free_memory()}",
                hint="serve with a smaller --max-running or --max-context, or free the device",
            ) from error

    def _free_memory(self) -> str:
        """The end of a message that says what there is."""
        if self.device.type != "cuda":
            return ""
        free, total = torch.cuda.mem_get_info(self.device)
        return f", and {gibibytes(free)} of {gibibytes(total)} are free"

    @torch.inference_mode()
    def rehearse(self, *, budget: int, topk: int) -> None:
        """Run the largest prefill and the largest round that requests may ask for, on nothing.

        What they take stays reserved for the smaller ones, so memory runs out here or, once
        requests are admitted, not at all. From then on rounds come in a few shapes only, each the
        next larger one.

        Args:
            budget: the largest of a request.
            topk: the most candidates a depth.

        Raises:
            CapacityError: there is not enough memory.
        """
        assert not self.sequences, "the rows are empty"
        room = self.cache.max_length
        drafting = self.drafter is not None
        shape = RoundShape(
            rows=self.rows,
            context=room,
            budget=max(budget, self._chain) if drafting else 0,
            width=min(topk, self.target.config.vocab_size) if drafting else 0,
            sampled=True,
            filters=True,
        )
        try:
            tokens = torch.zeros(1, min(PREFILL_CHUNK, room), dtype=torch.int64, device=self.device)
            self.target.verify(
                TreeBatch.chain(tokens, conv_kernel=self.target.conv_kernel),
                self.cache,
                slice(0, 1),
                self.host_round.feature_layers,
                lengths=self.state.lengths[:1],
                context=room,
            )
            if self.pipeline is not None:
                self.pipeline.prepare(shape)
            else:
                with self.state.paused():
                    self.device_round(shape)()
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"there is no memory for a round of {self.rows} requests with {shape.budget} "
                f"nodes each and {room} tokens before them{self._free_memory()}",
                hint="ask for fewer requests at once, a smaller budget or a shorter context",
            ) from error
        self._rehearsed = shape.budget

    @property
    def _chain(self) -> int:
        """Nodes of a chain besides its root."""
        return 0 if self.drafter is None else self.drafter.config.block_size - 1

    @property
    def free(self) -> int:
        """How many more requests can start."""
        return self.rows - len(self.sequences)

    def check(self, sequence: Sequence) -> None:
        """Refuse a request that could not run to its end.

        Raises:
            RequestError: an empty prompt, a token outside the vocabulary, a mode without its
                drafter, `max_tokens` below 1, or prompt and `max_tokens` together longer than the
                context.
        """
        vocab = self.target.config.vocab_size
        if not sequence.prompt:
            raise RequestError("the prompt is empty", hint="give at least one token")
        if sequence.max_tokens < 1:
            raise RequestError(f"max_tokens must be 1 or more, got {sequence.max_tokens}")
        if self.drafter is None and sequence.speculation.mode is not Mode.AR:
            raise RequestError(
                f"mode `{sequence.speculation.mode}` needs a drafter",
                hint="start the engine with --drafter, or ask for mode `ar`",
            )
        total = len(sequence.prompt) + sequence.max_tokens
        if total > self.max_length:
            raise RequestError(
                f"{len(sequence.prompt)} prompt tokens and max_tokens {sequence.max_tokens} exceed "
                f"the context of {self.max_length} tokens",
                hint="shorten the prompt or lower max_tokens",
            )
        # Last: a prompt that does not fit may be of millions of tokens.
        if any(not 0 <= token < vocab for token in sequence.prompt):
            raise RequestError(f"the prompt has a token outside the vocabulary of {vocab}")

    def start(self, sequence: Sequence) -> None:
        """Give a request its row. Its prompt is committed by `prefill`.

        Raises:
            RequestError: as `check`.
            CapacityError: no row is free.
        """
        self.check(sequence)
        if not self.free:
            raise CapacityError(f"all {self.rows} rows are taken")
        sequence.row = len(self.sequences)
        self.cache.reset(sequence.row)
        if self.drafter_cache is not None:
            self.drafter_cache.reset(sequence.row)
        if sequence.speculation.mode is Mode.SHADOW:
            sequence.shadow = ShadowEvidence()
        self.sequences.append(sequence)
        if sequence.decoding:
            self._decode_from_now_on(sequence)

    def stop(self, sequence: Sequence) -> None:
        """Free the row of a request, finished or not."""
        row, last = sequence.row, len(self.sequences) - 1
        decoding = sum(one.decoding for one in self.sequences)
        if sequence.decoding:
            self._swap(row, decoding - 1)
            row = decoding - 1
        self._swap(row, last)
        self.state.clear(last)
        self.sequences.pop()
        sequence.row = -1

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        self.cache.swap(a, b)
        if self.drafter_cache is not None:
            self.drafter_cache.swap(a, b)
        self.state.swap(a, b)
        one, other = self.sequences[a], self.sequences[b]
        self.sequences[a], self.sequences[b] = other, one
        one.row, other.row = b, a

    def _decode_from_now_on(self, sequence: Sequence) -> None:
        """Move a request whose prompt is committed behind the last one that decodes."""
        first_prefilling = sum(one.decoding for one in self.sequences) - 1
        self._swap(sequence.row, first_prefilling)
        speculation = sequence.speculation
        if self.tuner is not None and speculation.tuned:
            sequence.budget = min(self.tuner.in_use, speculation.budget)
        budgets = {Mode.AR: 0, Mode.TREE: sequence.budget}
        self.state.set(
            sequence.row,
            length=self.cache.lengths[sequence.row],
            anchor=sequence.anchor,
            budget=budgets.get(speculation.mode, self._chain),
            width=min(sequence.speculation.candidates, self.target.config.vocab_size),
            sampling=sequence.sampling,
        )

    @torch.inference_mode()
    def prefill(self, sequence: Sequence) -> None:
        """Commit the next piece of the prompt of a request that is not yet decoding.

        Raises:
            OutOfMemoryError: nothing is committed; the request must be stopped.
        """
        with self.clock.timed("prefill"), self._within_memory():
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
        with self._within_memory():
            return self._round()

    def _round(self) -> list[tuple[Sequence, list[int]]]:
        running = [one for one in self.sequences if one.decoding]
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
                    self._choose_budget(running)
                    self.pipeline.launch(self.round_shape(running), running)
                if not len(self.pipeline):
                    return []
                if outcome := self._read(self.pipeline):
                    return outcome

    def _host_round(self, running: list[Sequence]) -> list[tuple[Sequence, list[int]]]:
        self._choose_budget(running)
        outcome = self.host_round(running)
        for one in running:
            if self.tuner is not None and one.speculation.tuned and one.finish_reason != "failed":
                self.tuner.observe(one.budget, one.path)
        return outcome

    def _choose_budget(self, running: SequenceOf[Sequence]) -> None:
        """Settle the budget of the next round for the requests that leave it open."""
        tuned = [one for one in running if one.speculation.tuned]
        if self.tuner is None or not tuned:
            return
        budget = self.tuner.next(len(running))
        for one in tuned:
            chosen = min(budget, one.speculation.budget)
            if one.budget != chosen:
                # Rounds in flight come before this write on the device.
                self.state.budgets[one.row] = one.budget = chosen

    def _read(self, pipeline: RoundPipeline) -> list[tuple[Sequence, list[int]]]:
        """What the oldest round in flight gave to the requests that are still here."""
        outcome = []
        for one, tokens, sound, path, budget in pipeline.read():
            if one.row < 0 or one.finish_reason is not None:
                continue
            for cache in (self.cache, self.drafter_cache):
                if cache is not None:
                    cache.advance(one.row, len(tokens))
            if not sound:
                one.finish_reason = "failed"
            elif self.tuner is not None and one.speculation.tuned:
                self.tuner.observe(budget, path)
            outcome.append((one, one.take(tokens) if sound else []))
        return outcome

    def round_shape(self, running: SequenceOf[Sequence]) -> RoundShape:
        """The shape of the round that serves them all."""
        sampling = [one.sampling for one in running if not one.sampling.greedy]
        drafting = [one for one in running if one.speculation.drafts]
        vocab = self.target.config.vocab_size
        budget = max(
            (one.budget if one.speculation.mode is Mode.TREE else self._chain for one in drafting),
            default=0,
        )
        width = min(max((one.speculation.candidates for one in drafting), default=0), vocab)
        if self._rehearsed is not None:
            # Each shape costs a capture, and requests may ask for any.
            budget = next_larger(budget, (*BUDGETS, self._chain), self._rehearsed)
            width = next_larger(width, WIDTHS, vocab)
        return RoundShape(
            rows=bucket(len(running), self.rows),
            context=context_bucket(
                max(self.cache.lengths[: len(running)]) + self.cache.unread, self.cache.max_length
            ),
            budget=budget,
            width=width,
            sampled=bool(sampling),
            filters=any(one.filters for one in sampling),
        )

    @contextmanager
    def led_by_host(self) -> Iterator[None]:
        """Rounds meanwhile are led by the host, whatever the decoder was made for.

        No request may be running at the beginning or at the end.
        """
        kept, self.pipeline = self.pipeline, None
        yield
        self.pipeline = kept

    def device_round(self, shape: RoundShape) -> DeviceRound:
        """A round of a shape over the caches."""
        return DeviceRound(
            self.target, self.drafter, self.cache, self.drafter_cache, self.state, shape
        )
