"""Modes against `ar` on the same prompts: equal tokens, acceptance length, speed.

Decoding is lossless, so every mode emits what `ar` emits, but for the rounding of logits: a matrix
product over 17 rows may round otherwise than one over a single row. Where two tokens differ the
*gap* tells which it is: how far apart the two tokens are under `ar`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ddtree_engine import sampling
from ddtree_engine.budget_tuner import MOST, Budget
from ddtree_engine.decoder import Decoder
from ddtree_engine.errors import EngineError, NotFiniteError
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Speculation
from ddtree_engine.sequence import Sequence as Request
from ddtree_engine.shadow import ShadowSummary, merge
from ddtree_engine.stages import STAGES, Stage

# A bfloat16 logit between 16 and 32 is a multiple of 2**-3.
MAX_GAP = {"float32": 1e-3, "bfloat16": 2.0**-3}
"""Largest gap of a divergence that rounding explains, by dtype of the weights."""


def parse_mode(text: str, topk: int, budget: Budget = 16) -> Speculation:
    """Return the speculation that `ar`, `linear`, `shadow`, `tree` or `tree:BUDGET` names.

    `budget` is that of a tree which names none; `tree:auto` leaves it to the decoder.

    Raises:
        EngineError: none of these.
    """
    name, colon, own_budget = text.partition(":")
    hint = "modes are ar, linear, shadow and tree, the last with a budget: tree:16, tree:auto"
    try:
        mode = Mode(name)
        if colon and mode is not Mode.TREE:
            raise ValueError(f"mode {mode} has no budget")
        wanted = own_budget if colon else budget
        if wanted != "auto":
            return Speculation(mode, int(wanted), topk)
        if mode is Mode.TREE:
            return Speculation(mode, MOST, topk, auto=True)
        return Speculation(mode, topk=topk)
    except ValueError as error:
        raise EngineError(f"`{text}` is not a mode", hint=hint) from error


def label(speculation: Speculation) -> str:
    """Return the name that `parse_mode` reads."""
    if speculation.mode is Mode.TREE:
        return "tree:auto" if speculation.auto else f"tree:{speculation.budget}"
    return speculation.mode.value


@dataclass(frozen=True)
class Divergence:
    """The first token where a mode left `ar`.

    Attributes:
        prompt: index of the prompt.
        position: index among the emitted tokens.
        gap: how far apart `ar` sees the two tokens there, in logits (noise included).
    """

    mode: str
    temperature: float
    prompt: int
    position: int
    gap: float


@dataclass
class ModeResult:
    """One mode at one temperature over all prompts.

    Attributes:
        tokens, rounds: of one pass over the prompts (every pass emits the same).
        tokens_per_second: of each measured pass, decoding alone, without the prompts.
        stage_seconds: of all measured passes, by stage.
        shadow: evidence of a shadow mode.
    """

    speculation: Speculation
    temperature: float
    tokens: int = 0
    rounds: int = 0
    tokens_per_second: list[float] = field(default_factory=list)
    stage_seconds: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    shadow: ShadowSummary | None = None

    @property
    def acceptance_length(self) -> float:
        """Tokens per round."""
        return self.tokens / self.rounds

    @property
    def median_tokens_per_second(self) -> float:
        """Median over the measured passes."""
        return statistics.median(self.tokens_per_second)


def run_request(decoder: Decoder, request: Request) -> float:
    """Run one request alone to its end; return the seconds that its rounds took.

    Raises:
        NotFiniteError: the model is damaged.
    """
    decoder.start(request)
    try:
        while not request.decoding:
            decoder.prefill(request)
        if decoder.device.type == "cuda":
            torch.cuda.synchronize(decoder.device)  # the prompt is no part of decoding
        begin = perf_counter()
        while request.finish_reason is None:
            decoder.round()
        seconds = perf_counter() - begin
        if request.finish_reason == "failed":
            raise NotFiniteError
        return seconds
    finally:
        decoder.stop(request)


def compare(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    modes: Sequence[Speculation],
    *,
    max_tokens: int,
    temperatures: Sequence[float],
    seed: int,
    stop_ids: frozenset[int] = frozenset(),
    runs: int = 1,
    reference: Decoder | None = None,
) -> Iterator[ModeResult | Divergence]:
    """Run every mode over every prompt, and yield each result as it is there.

    The first of `modes` must be `ar`, the others are held against it. Before a temperature is
    measured, each mode runs once over the first prompt, unmeasured. Modes take turns prompt by
    prompt, so that a machine that slows down slows them all.

    Args:
        decoder: with room for the longest prompt and `max_tokens`.
        prompts: token ids.
        modes: what to compare.
        max_tokens: tokens to emit for each prompt.
        temperatures: 0 is greedy.
        seed: of the noise.
        stop_ids: tokens that end a request early.
        runs: measured passes over all prompts.
        reference: if given, all modes are held against `ar` there.
    """
    judge = decoder if reference is None else reference
    for temperature in temperatures:
        params = SamplingParams(temperature=temperature, seed=seed)

        def request(
            prompt: Sequence[int], mode: Speculation, params: SamplingParams = params
        ) -> Request:
            return Request(prompt, max_tokens, params, mode, stop_ids)

        for mode in modes:
            run_request(decoder, request(prompts[0], mode))
        results = [ModeResult(mode, temperature) for mode in modes]
        evidence: list[list[ShadowSummary]] = [[] for _ in modes]
        for run in range(runs):
            seconds = [0.0] * len(modes)
            emitted = [0] * len(modes)
            for index, prompt in enumerate(prompts):
                baseline: list[int] | None = None
                if reference is not None and run == 0:
                    expected = request(prompt, modes[0])
                    run_request(reference, expected)
                    baseline = expected.emitted
                for m, (mode, result) in enumerate(zip(modes, results, strict=True)):
                    decoder.clock.reset()
                    one = request(prompt, mode)
                    seconds[m] += run_request(decoder, one)
                    emitted[m] += len(one.emitted)
                    for stage in STAGES:
                        result.stage_seconds[stage] += decoder.clock.seconds[stage]
                    if run > 0:
                        continue
                    result.tokens += len(one.emitted)
                    result.rounds += one.rounds
                    if one.shadow is not None:
                        evidence[m].append(one.shadow.summary())
                    if baseline is None:
                        baseline = one.emitted
                    elif one.emitted != baseline:
                        yield divergence(judge, prompt, baseline, one, label(mode), index)
            for result, count, spent in zip(results, emitted, seconds, strict=True):
                result.tokens_per_second.append(count / spent)
        for result, summaries in zip(results, evidence, strict=True):
            if summaries:
                result.shadow = merge(summaries)
            yield result


def divergence(
    decoder: Decoder,
    prompt: Sequence[int],
    baseline: Sequence[int],
    other: Request,
    mode: str,
    index: int,
) -> Divergence:
    """Where `other` left `baseline`, and by how little.

    Args:
        decoder: recomputes the logits there; has a free row.
        prompt: of both.
        baseline: tokens that were expected.
        other: a request that emitted others.
        mode: how the divergence names it.
        index: of the prompt.
    """
    pairs = zip(baseline, other.emitted, strict=False)
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        # One is a prefix of the other: only a broken stop rule does that, and no rounding.
        position = min(len(baseline), len(other.emitted))
        return Divergence(mode, other.sampling.temperature, index, position, float("inf"))
    logits = decoder.next_logits([*prompt, *baseline[:position]])
    params = other.sampling
    scores = logits
    if not params.greedy:
        at = torch.tensor([len(prompt) + position], device=logits.device)
        noise = sampling.gumbel_noise(params.seed, at, logits.shape[-1])[0]
        scores = logits + noise * params.temperature
    # Recomputed logits may round to the other side of a tie: what counts is the distance.
    gap = abs(float(scores[baseline[position]] - scores[other.emitted[position]]))
    return Divergence(mode, params.temperature, index, position, gap)
