"""Rounds as CUDA graphs, where there is a GPU: nothing waits for the host, tokens are the CPU's."""

from __future__ import annotations

import gc

import pytest
import torch

from ddtree_engine.comparison import MAX_GAP, divergence
from ddtree_engine.decoder import Decoder
from ddtree_engine.engine import Engine, load_engine
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from tests.engine.test_decoder import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TEXT = "def parse(self, text, start=0):\n    if not text:\n        return None\n" * 4
SHAPES = [
    Speculation(Mode.AR),
    Speculation(Mode.LINEAR),
    Speculation(Mode.TREE, budget=16, topk=8),
    Speculation(Mode.TREE, budget=64, topk=8),
]


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    return (
        load_engine(device="cuda", dtype="float32"),
        load_engine(device="cpu", dtype="float32"),
    )


def requests(engine: Engine, speculation: Speculation, temperature: float) -> list[Sequence]:
    tokens = engine.tokenizer.encode(TEXT)
    sampling = SamplingParams(temperature=temperature, seed=3)
    return [
        Sequence(tokens[:length], 40, sampling, speculation) for length in (1, 7, 40, len(tokens))
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("speculation", SHAPES, ids=lambda one: f"{one.mode}-{one.budget}")
def test_tokens_are_those_of_the_cpu_in_every_bucket(
    engines: tuple[Engine, Engine], speculation: Speculation, temperature: float
) -> None:
    gpu, cpu = engines
    expected = requests(cpu, Speculation(Mode.AR), temperature)
    on_cpu = Decoder(cpu.target, cpu.drafter, rows=4, max_length=256)
    run(on_cpu, *expected)
    same = 0
    for rows in (1, 2, 4):
        found = requests(gpu, speculation, temperature)
        run(Decoder(gpu.target, gpu.drafter, rows=rows, max_length=256, device_rounds=True), *found)
        for one, other in zip(expected, found, strict=True):
            same += one.emitted == other.emitted
            if one.emitted != other.emitted:
                left = divergence(on_cpu, one.prompt, one.emitted, other, speculation.mode, rows)
                assert left.gap <= MAX_GAP["float32"], left
    assert same > 6, "rounding explains a token now and then"


@pytest.mark.parametrize("speculation", SHAPES, ids=lambda one: f"{one.mode}-{one.budget}")
@torch.inference_mode()
def test_a_launch_waits_for_nothing(
    engines: tuple[Engine, Engine], speculation: Speculation
) -> None:
    gpu, _ = engines
    decoder = Decoder(gpu.target, gpu.drafter, rows=4, max_length=256, device_rounds=True)
    assert decoder.pipeline is not None
    for one in requests(gpu, speculation, 0.8):
        decoder.start(one)
        while not one.decoding:
            decoder.prefill(one)
    running = list(decoder.sequences)
    shape = decoder.round_shape(running)
    decoder.pipeline.prepare(shape)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            decoder.pipeline.launch(shape, running)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(read.sound and read.tokens for read in decoder.pipeline.read())


def test_a_graph_keeps_what_it_reads(engines: tuple[Engine, Engine]) -> None:
    """Memory that is reused after a capture must not be the graph's."""
    gpu, _ = engines
    speculation = Speculation(Mode.TREE, budget=16, topk=8)
    emitted = []
    for _ in range(2):
        decoder = Decoder(gpu.target, gpu.drafter, rows=1, max_length=256, device_rounds=True)
        one, other = requests(gpu, speculation, 0.0)[:2]
        run(decoder, one)
        gc.collect()
        # Every free block of the small sizes that a round keeps, overwritten.
        taken = [torch.full((2**n,), 1 << 40, device="cuda") for n in range(18) for _ in range(64)]
        del taken
        run(decoder, other)
        emitted.append(other.emitted)
    alone = requests(gpu, speculation, 0.0)[1]
    run(Decoder(gpu.target, gpu.drafter, rows=1, max_length=256), alone)
    assert emitted == [alone.emitted] * 2
