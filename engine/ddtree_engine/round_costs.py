"""What rounds of each budget cost on this device, measured with the decoder that will run them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from time import perf_counter

from ddtree_engine.budget_tuner import RoundCosts
from ddtree_engine.decoder import Decoder
from ddtree_engine.errors import CapacityError
from ddtree_engine.sequence import Mode, Sequence, Speculation

PREFIX = 128
"""Tokens before the rounds that are timed."""

WARM_UPS = 3
RUNS = 8

MEASURED_LENGTH = 512
"""Tokens of a context that has room for all of that with blocks of up to 24."""


def measure_costs(
    decoder: Decoder,
    budgets: Iterable[int],
    *,
    topk: int,
    on_step: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = perf_counter,
) -> RoundCosts:
    """Time rounds of one request with each budget; on a GPU they are captured by this.

    Args:
        decoder: with a drafter; has no requests, and has none afterwards.
        budgets: to measure.
        topk: candidates a depth.
        on_step: called after each round.
        clock: seconds.

    Returns:
        The median of `RUNS` rounds after `WARM_UPS`, of fewer where the context has no room.

    Raises:
        CapacityError: the context has no room for two rounds.
    """
    return RoundCosts(
        {
            budget: _measure(decoder, Speculation(Mode.TREE, budget, topk), on_step, clock)
            for budget in budgets
        }
    )


def _measure(
    decoder: Decoder,
    speculation: Speculation,
    on_step: Callable[[], None],
    clock: Callable[[], float],
) -> float:
    assert decoder.drafter is not None, "trees need a drafter"
    block = decoder.drafter.config.block_size
    # A round emits a block at most, so this many are surely not the last.
    rounds = min(WARM_UPS + RUNS, decoder.max_length // (2 * block))
    if rounds < 2:
        raise CapacityError(
            f"a context of {decoder.max_length} tokens has no room to measure rounds in",
            hint="give a larger --max-context, or a --budget in numbers",
        )
    room = (rounds + 1) * block
    length = min(PREFIX, decoder.max_length - room)
    vocab = decoder.target.config.vocab_size
    prompt = [i * 7 % vocab for i in range(1, 1 + length)]
    request = Sequence(prompt, room, speculation=speculation)
    decoder.start(request)
    try:
        while not request.decoding:
            decoder.prefill(request)
        times = []
        for _ in range(rounds):
            begin = clock()
            decoder.round()
            times.append(clock() - begin)
            on_step()
    finally:
        decoder.stop(request)
    return statistics.median(times[min(WARM_UPS, rounds - 1) :])
