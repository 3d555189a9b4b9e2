"""The first requests, which pay for memory pools and compiled kernels so that no user does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from ddtree_engine.comparison import MAX_GAP, divergence, label
from ddtree_engine.decoder import Decoder
from ddtree_engine.errors import EngineError, NotFiniteError
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import PREFILL_CHUNK, Mode, Sequence, Speculation

PROMPT_LENGTHS = (1, 5)
"""No prefill, and a short one."""
LONG_PROMPT = PREFILL_CHUNK + 5
"""In two pieces, the first of them a full one."""
TOKENS = 8
CHECKED_TOKENS = 24
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
    if decoder.max_length >= LONG_PROMPT + TOKENS:
        # What is sampled does not matter to it, only whether the drafter takes part.
        waiting += [
            Sequence([0] * LONG_PROMPT, TOKENS, speculation=Speculation(mode, budget, topk))
            for mode in (modes[0], modes[-1])
        ]
    count = len(waiting)
    # The first one runs alone: a batch of one is the shape that a single user meets.
    _run(decoder, waiting[:1], on_step)
    _run(decoder, waiting[1:], on_step)
    return count


def check_device_rounds(decoder: Decoder, *, budget: int, topk: int) -> None:
    """Hold the tokens of rounds without the host against those of rounds led by it.

    A GPU, a driver or a compiler may be one that nobody has tried: what is wrong there must not be
    served. Does nothing where all rounds are led by the host.

    Args:
        decoder: has no requests; has none afterwards.
        budget: the largest that requests may ask for.
        topk: the server's.

    Raises:
        EngineError: they differ by more than rounding explains.
    """
    if decoder.pipeline is None:
        return
    vocab = decoder.target.config.vocab_size
    room = decoder.max_length - CHECKED_TOKENS
    if room < 1:
        return
    # Two requests after one another: the second finds what the first has left.
    prompts = [[i * 7 % vocab for i in range(1, 1 + min(n, room))] for n in (1, 40)]
    dtype = str(decoder.target.embed_tokens.weight.dtype).removeprefix("torch.")
    for mode in (Mode.AR, Mode.LINEAR, Mode.TREE):
        if mode is not Mode.AR and decoder.drafter is None:
            continue
        speculation = Speculation(mode, budget, topk)
        for prompt in prompts:
            led, free = (
                Sequence(prompt, CHECKED_TOKENS, speculation=speculation) for _ in range(2)
            )
            with decoder.led_by_host():
                _run(decoder, [led], lambda: None)
            _run(decoder, [free], lambda: None)
            if led.emitted != free.emitted:
                left = divergence(decoder, prompt, led.emitted, free, label(speculation), 0)
                if not left.gap <= MAX_GAP.get(dtype, 0.0):
                    raise EngineError(
                        f"rounds on this device are not exact: `{left.mode}` chose another token "
                        f"than rounds led by the host, {left.gap:.3g} apart in logits",
                        hint="serve with --rounds host; please report the GPU, the driver, the "
                        "versions of PyTorch and Triton, and what `ddtree-engine check` says",
                    )


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
