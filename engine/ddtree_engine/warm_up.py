"""The first requests, which pay for memory pools and compiled kernels so that no user does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from ddtree_engine.decoder import PREFILL_CHUNK, Decoder
from ddtree_engine.errors import NotFiniteError
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation

PROMPT_LENGTHS = (1, 5, PREFILL_CHUNK + 5)
"""No prefill, a short one, and one in two pieces."""
TOKENS = 8
SAMPLING = (SamplingParams(), SamplingParams(temperature=0.8, top_k=20, top_p=0.95))


def warm_up(
    decoder: Decoder, *, budget: int, topk: int, on_step: Callable[[], None] = lambda: None
) -> int:
    """Run every mode that requests may ask for, greedy and sampled, alone and in full batches.

    Args:
        decoder: has no requests; has none afterwards.
        budget: the largest that requests may ask for.
        topk: the server's.
        on_step: called after each step.

    Returns:
        How many requests were run.

    Raises:
        NotFiniteError: the model is damaged.
    """
    modes = [mode for mode in Mode if mode is Mode.AR or decoder.drafter is not None]
    lengths = [n for n in PROMPT_LENGTHS if n + TOKENS <= decoder.max_length] or [1]
    waiting = [
        Sequence(
            [0] * length,
            min(TOKENS, decoder.max_length - length),
            sampling,
            Speculation(mode, budget, topk),
        )
        for mode, sampling, length in product(modes, SAMPLING, lengths)
    ]
    count = len(waiting)
    # The first one runs alone: a batch of one is the shape that a single user meets.
    _run(decoder, waiting[:1], on_step)
    _run(decoder, waiting[1:], on_step)
    return count


def _run(decoder: Decoder, waiting: list[Sequence], on_step: Callable[[], None]) -> None:
    waiting = list(waiting)
    while waiting or decoder.sequences:
        while waiting and decoder.free:
            decoder.start(waiting.pop())
        prefilling = [one for one in decoder.sequences if not one.decoding]
        if prefilling:
            decoder.prefill(prefilling[0])
        finished = [one for one, _ in decoder.round() if one.finish_reason is not None]
        if any(one.finish_reason == "failed" for one in finished):
            raise NotFiniteError
        for one in finished:
            decoder.stop(one)
        on_step()
