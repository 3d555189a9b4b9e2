"""Rounds without the host emit what rounds led by the host emit."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ddtree_engine.decoder import Decoder
from ddtree_engine.device_round import DeviceRound
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.engine import Engine, load_engine
from ddtree_engine.errors import EngineError
from ddtree_engine.round_pipeline import RoundPipeline
from ddtree_engine.round_shapes import BUDGETS, RoundShape, next_larger
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from ddtree_engine.target import TargetModel
from ddtree_engine.warm_up import check_device_rounds
from tests.engine.conftest import randomize
from tests.engine.drift import drift
from tests.engine.test_decoder import FILTERED, GREEDY, MODES, SAMPLED, prompt, run

SHAPES = [
    Speculation(Mode.AR),
    Speculation(Mode.LINEAR),
    Speculation(Mode.TREE, budget=12, topk=3),
    Speculation(Mode.TREE, budget=40, topk=11),
]


@pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, FILTERED], ids=["greedy", "t0.8", "filtered"]
)
@pytest.mark.parametrize("speculation", SHAPES, ids=lambda one: f"{one.mode}-{one.budget}")
def test_one_request(
    target: TargetModel, drafter: DrafterModel, sampling: SamplingParams, speculation: Speculation
) -> None:
    led, alone = (
        Decoder(target, drafter, max_length=240, device_rounds=device) for device in (False, True)
    )
    for length in (1, 150):
        one, other = (Sequence(prompt(length), 40, sampling, speculation) for _ in range(2))
        run(led, one)
        run(alone, other)
        assert other.emitted == one.emitted
        assert other.accepted == one.accepted


def test_requests_of_every_mode_come_and_go(target: TargetModel, drafter: DrafterModel) -> None:
    def requests() -> list[Sequence]:
        shapes = [*SHAPES, *MODES]
        samplings = [GREEDY, SAMPLED, FILTERED]
        return [
            Sequence(prompt(3 + 37 * i, i), 12 + 7 * (i % 4), samplings[i % 3], shapes[i])
            for i in range(len(shapes))
        ]

    decoder = Decoder(target, drafter, max_length=400)
    alone = [run(decoder, one)[0] for one in requests()]
    for rows in (3, 5):
        together = Decoder(target, drafter, rows=rows, max_length=400, device_rounds=True)
        assert run(together, *requests()) == alone


@pytest.mark.parametrize("max_tokens", [1, 2, 6])
def test_a_request_may_fill_the_context_to_the_last_token(
    target: TargetModel, drafter: DrafterModel, max_tokens: int
) -> None:
    (ar,) = run(
        Decoder(target, drafter, max_length=20 + max_tokens),
        Sequence(prompt(20), max_tokens, SAMPLED, Speculation(Mode.AR)),
    )
    decoder = Decoder(target, drafter, max_length=20 + max_tokens, device_rounds=True)
    for speculation in SHAPES:
        assert run(decoder, Sequence(prompt(20), max_tokens, SAMPLED, speculation)) == [ar]


def test_a_cancelled_request_leaves_no_trace(target: TargetModel, drafter: DrafterModel) -> None:
    decoder = Decoder(target, drafter, rows=2, max_length=200, device_rounds=True)
    (expected,) = run(decoder, Sequence(prompt(9), 30, GREEDY, SHAPES[2]))
    gone, stays = (Sequence(prompt(n), 30, GREEDY, SHAPES[2]) for n in (50, 9))
    for one in (gone, stays):
        decoder.start(one)
        while not one.decoding:
            decoder.prefill(one)
    decoder.round()
    decoder.stop(gone)
    before = list(gone.emitted)
    while stays.finish_reason is None:
        decoder.round()
    assert gone.emitted == before
    assert stays.emitted == expected
    decoder.stop(stays)
    assert decoder.round() == []


def test_numbers_that_are_not_finite_end_their_own_request(
    target: TargetModel, drafter: DrafterModel
) -> None:
    decoder = Decoder(target, drafter, rows=2, max_length=200, device_rounds=True)
    (expected,) = run(decoder, Sequence(prompt(9), 30, GREEDY, SHAPES[2]))
    broken, sound = (Sequence(prompt(9), 30, GREEDY, SHAPES[2]) for _ in range(2))
    for one in (broken, sound):
        decoder.start(one)
        while not one.decoding:
            decoder.prefill(one)
    decoder.cache.states[:, broken.row] = torch.nan
    run(decoder)
    assert broken.finish_reason == "failed"
    assert broken.emitted == []
    assert sound.emitted == expected


def test_a_device_whose_rounds_are_wrong_is_not_served_from(
    target: TargetModel, drafter: DrafterModel
) -> None:
    decoder = Decoder(target, drafter, rows=2, max_length=100, device_rounds=True)
    check_device_rounds(decoder, budget=12, topk=3)
    assert not decoder.sequences
    # Rounds of a model that is not the decoder's.
    other = TargetModel(target.config)
    randomize(other, 5)
    decoder.pipeline = RoundPipeline(
        lambda shape: DeviceRound(
            other, drafter, decoder.cache, decoder.drafter_cache, decoder.state, shape
        ),
        decoder.state,
    )
    with pytest.raises(EngineError, match="rounds on this device are not exact: `ar`"):
        check_device_rounds(decoder, budget=12, topk=3)


def test_the_device_leads_again_after_an_error(target: TargetModel, drafter: DrafterModel) -> None:
    decoder = Decoder(target, drafter, max_length=100, device_rounds=True)
    pipeline = decoder.pipeline
    assert pipeline is not None
    with pytest.raises(EngineError, match="in a step"), decoder.led_by_host():
        raise EngineError("in a step")
    assert decoder.pipeline is pipeline


@pytest.fixture(scope="module")
def demo() -> Engine:
    return load_engine(device="cpu")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_demo_in_a_batch_of_mixed_prefixes(demo: Engine, temperature: float) -> None:
    text = "def parse(self, text, start=0):\n    if not text:\n        return None\n" * 3
    tokens = demo.tokenizer.encode(text)
    prompts = [tokens[:5], tokens[:40], tokens]
    sampling = SamplingParams(temperature=temperature, seed=3)
    for speculation in (
        Speculation(Mode.AR),
        Speculation(Mode.LINEAR),
        Speculation(Mode.TREE, budget=16, topk=8),
    ):
        emitted = []
        for device_rounds in (False, True):
            requests = [Sequence(one, 24, sampling, speculation) for one in prompts]
            decoder = Decoder(
                demo.target, demo.drafter, rows=3, max_length=256, device_rounds=device_rounds
            )
            emitted.append(run(decoder, *requests))
        assert emitted[0] == emitted[1]


@pytest.mark.parametrize("length", [600, pytest.param(2_500, marks=pytest.mark.slow)])
def test_the_state_after_many_tree_rounds_is_that_of_ar(
    target: TargetModel, drafter: DrafterModel, length: int
) -> None:
    """No drift: what is committed depends on the accepted tokens alone, not on their trees."""
    stops = [length // 2, length]
    for found in drift(
        target, drafter, prompt(20), stops=stops, sampling=SAMPLED, budget=40, topk=11
    ):
        assert found.rounds < found.tokens * 0.9, "trees are accepted"
        assert max(found.distances.values()) < 1e-5, found


def test_a_rehearsal_changes_nothing(target: TargetModel, drafter: DrafterModel) -> None:
    for device_rounds in (False, True):
        plain, rehearsed = (
            Decoder(target, drafter, rows=2, max_length=100, device_rounds=device_rounds)
            for _ in range(2)
        )
        rehearsed.rehearse(budget=12, topk=3)
        for name in ("keys", "values", "tails", "states", "lengths"):
            assert torch.equal(
                torch.as_tensor(getattr(plain.cache, name)),
                torch.as_tensor(getattr(rehearsed.cache, name)),
            )
        one, other = (Sequence(prompt(9), 30, GREEDY, SHAPES[2]) for _ in range(2))
        assert run(plain, one) == run(rehearsed, other)


def test_whatever_budgets_are_asked_for_there_are_few_shapes(
    target: TargetModel, drafter: DrafterModel
) -> None:
    decoder = Decoder(target, drafter, rows=2, max_length=100, device_rounds=True)
    decoder.rehearse(budget=20, topk=3)
    assert decoder.pipeline is not None
    (expected,) = run(decoder, Sequence(prompt(9), 12, GREEDY, SHAPES[0]))
    for budget in range(1, 21):
        for topk in (1, 3, 40):
            one = Sequence(prompt(9), 12, GREEDY, Speculation(Mode.TREE, budget, topk))
            assert run(decoder, one) == [expected]
    seen = {(shape.budget, shape.width) for shape in decoder.pipeline.shapes}
    # The chain of this drafter has 5 nodes, and its vocabulary 11 tokens.
    budgets, widths = {1, 3, 5, 7, 15, 16, 20}, {1, 4, 11}
    assert seen == {(0, 0), (20, 3), *((b, w) for b in budgets for w in widths)}


@pytest.mark.parametrize(
    ("wanted", "size"), [(0, 0), (1, 1), (2, 3), (15, 15), (17, 31), (32, 32), (33, 40), (40, 40)]
)
def test_the_next_larger_size(wanted: int, size: int) -> None:
    assert next_larger(wanted, BUDGETS, 40) == size


@pytest.mark.parametrize("device_rounds", [False, True])
def test_caches_go_with_their_decoder(
    target: TargetModel, drafter: DrafterModel, device_rounds: bool
) -> None:
    """Not some time later, when Python looks for cycles: the next decoder needs the memory."""
    decoder = Decoder(target, drafter, max_length=100, device_rounds=device_rounds)
    run(decoder, Sequence(prompt(9), 30, GREEDY, SHAPES[2]))
    gc.disable()
    try:
        kept = weakref.ref(decoder.cache.keys)
        del decoder
        assert kept() is None
    finally:
        gc.enable()


def test_a_shape_without_memory_takes_the_place_of_the_others(
    target: TargetModel, drafter: DrafterModel
) -> None:
    """The device has memory for one round; a stand-in, since a CPU has more."""
    decoder = Decoder(target, drafter, rows=2, max_length=200, device_rounds=True)
    assert decoder.pipeline is not None
    (expected,) = run(decoder, Sequence(prompt(9), 30, GREEDY, SHAPES[2]))

    def make(shape: RoundShape) -> DeviceRound:
        if decoder.pipeline is not None and decoder.pipeline.shapes:
            raise torch.OutOfMemoryError("no memory for a second round")
        return decoder.device_round(shape)

    decoder.pipeline = RoundPipeline(make, decoder.state)
    requests = [Sequence(prompt(9), 30, GREEDY, one) for one in (*SHAPES, *SHAPES)]
    assert run(decoder, *requests) == [expected] * len(requests)
    assert len(decoder.pipeline.shapes) == 1
