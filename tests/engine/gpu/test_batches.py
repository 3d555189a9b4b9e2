"""Batches of requests that differ in everything: each gets what it gets alone."""

from __future__ import annotations

import pytest

from ddtree_engine.decoder import Decoder
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from tests.engine.gpu.conftest import assert_same, load, text
from tests.engine.test_decoder import run

AR = Speculation(Mode.AR)
LINEAR = Speculation(Mode.LINEAR)
TREE = Speculation(Mode.TREE, budget=16, topk=8)
LARGE = Speculation(Mode.TREE, budget=64, topk=8)
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, seed=3)
FILTERED = SamplingParams(temperature=1.1, top_k=40, top_p=0.9, seed=1 << 40)


def mixed() -> list[Sequence]:
    """Prompts of 1 to 8,180 tokens; some requests grow over a length that rounds are cut at."""
    return [
        Sequence(text(length), tokens, sampling, speculation)
        for length, tokens, sampling, speculation in (
            (8_180, 40, GREEDY, TREE),  # past 8,192
            (1, 70, SAMPLED, LARGE),
            (2_030, 50, SAMPLED, LINEAR),  # past 2,048
            (30, 20, GREEDY, AR),
            (300, 90, FILTERED, TREE),
            (2_047, 30, GREEDY, LARGE),  # past 2,048
            (5, 120, GREEDY, LINEAR),
            (4_500, 25, SAMPLED, AR),
            (90, 60, GREEDY, TREE),
        )
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_requests_of_every_length_come_and_go(dtype: str) -> None:
    """Rows, lengths and modes change between rounds, and with them the graph that is launched."""
    gpu = load("cuda", dtype)

    def decoder(rows: int, *, device_rounds: bool = True) -> Decoder:
        return Decoder(
            gpu.target, gpu.drafter, rows=rows, max_length=8_300, device_rounds=device_rounds
        )

    judge = decoder(1, device_rounds=False)
    alone = mixed()
    for one in alone:
        run(judge, one)
    for rows in (3, 5, 9):
        batch, together = decoder(rows), mixed()
        run(batch, *together)
        for one, other in zip(alone, together, strict=True):
            assert_same(one, other, judge)
        assert batch.pipeline is not None
        shapes = batch.pipeline.shapes
        assert len({shape.rows for shape in shapes}) >= 3
        assert {shape.context for shape in shapes} >= {2_048, batch.cache.max_length}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "t0.8"])
@pytest.mark.parametrize("speculation", [AR, LINEAR, TREE, LARGE], ids=lambda one: str(one.mode))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_neighbours_change_nothing(
    dtype: str, speculation: Speculation, sampling: SamplingParams
) -> None:
    gpu = load("cuda", dtype)
    decoder = Decoder(gpu.target, gpu.drafter, rows=4, max_length=700, device_rounds=True)
    alone, beside = (Sequence(text(120), 100, sampling, speculation) for _ in range(2))
    run(decoder, alone)
    others = [
        Sequence(text(500), 150, FILTERED, LARGE),
        Sequence(text(1), 20, SAMPLED, AR),
        Sequence(text(60), 60, GREEDY, LINEAR),
        Sequence(text(333), 90, GREEDY, TREE),
    ]
    run(decoder, others[0], beside, *others[1:])
    assert_same(alone, beside, decoder)
