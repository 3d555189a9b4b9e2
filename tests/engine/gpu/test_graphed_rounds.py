"""Rounds as CUDA graphs, where there is a GPU: nothing waits for the host, tokens are the CPU's."""

from __future__ import annotations

import gc
from functools import cache

import pytest
import torch

from ddtree_engine.captured_graph import CapturedGraph
from ddtree_engine.decoder import Decoder
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from tests.engine.gpu.conftest import assert_same, load, text
from tests.engine.test_decoder import run

SHAPES = [
    Speculation(Mode.AR),
    Speculation(Mode.LINEAR),
    Speculation(Mode.TREE, budget=16, topk=8),
    Speculation(Mode.TREE, budget=64, topk=8),
]
LENGTHS = (1, 7, 40, 150)


def requests(speculation: Speculation, temperature: float, tokens: int = 40) -> list[Sequence]:
    sampling = SamplingParams(temperature=temperature, seed=3)
    return [Sequence(text(length), tokens, sampling, speculation) for length in LENGTHS]


def decoder(dtype: str, rows: int, *, device_rounds: bool = True) -> Decoder:
    gpu = load("cuda", dtype)
    return Decoder(gpu.target, gpu.drafter, rows=rows, max_length=256, device_rounds=device_rounds)


@cache
def on_cpu(dtype: str, temperature: float) -> tuple[Decoder, list[Sequence]]:
    """What `ar` emits on the CPU."""
    cpu = load("cpu", dtype)
    judge = Decoder(cpu.target, cpu.drafter, rows=4, max_length=256)
    expected = requests(Speculation(Mode.AR), temperature)
    run(judge, *expected)
    return judge, expected


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("speculation", SHAPES, ids=lambda one: f"{one.mode}-{one.budget}")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_are_those_of_the_cpu_in_every_bucket(
    dtype: str, speculation: Speculation, temperature: float
) -> None:
    judge, expected = on_cpu(dtype, temperature)
    same = 0
    for rows in (1, 2, 4):
        found = requests(speculation, temperature)
        run(decoder(dtype, rows), *found)
        for one, other in zip(expected, found, strict=True):
            same += one.emitted == other.emitted
            assert_same(one, other, judge)
    assert same > (6 if dtype == "float32" else 2), "rounding explains a token now and then"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("speculation", SHAPES, ids=lambda one: f"{one.mode}-{one.budget}")
@torch.inference_mode()
def test_rounds_wait_for_nothing(speculation: Speculation, temperature: float) -> None:
    """Launching and reading: only the event behind a round is waited for."""
    running = decoder("bfloat16", 4)
    assert running.pipeline is not None
    for one in requests(speculation, temperature, tokens=100):
        running.start(one)
        while not one.decoding:
            running.prefill(one)
    running.pipeline.prepare(running.round_shape(running.sequences))
    torch.cuda.set_sync_debug_mode("error")
    try:
        emitted = [tokens for _ in range(5) for _, tokens in running.round()]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(emitted) == 20
    assert all(emitted)


def test_a_graph_keeps_what_it_reads() -> None:
    """Memory that is reused after a capture must not be the graph's."""
    speculation = Speculation(Mode.TREE, budget=16, topk=8)
    emitted = []
    for _ in range(2):
        graphed = decoder("float32", 1)
        one, other = requests(speculation, 0.0)[:2]
        run(graphed, one)
        gc.collect()
        # Every free block of the small sizes that a round keeps, overwritten.
        taken = [torch.full((2**n,), 1 << 40, device="cuda") for n in range(18) for _ in range(64)]
        del taken
        run(graphed, other)
        emitted.append(other.emitted)
    alone = requests(speculation, 0.0)[1]
    run(decoder("float32", 1, device_rounds=False), alone)
    assert emitted == [alone.emitted] * 2


def test_garbage_does_not_end_a_graph_during_a_capture() -> None:
    """CUDA allows no graph to end while another is captured: the process would abort."""
    device = torch.device("cuda", 0)
    x = torch.arange(8.0, device=device)
    old = [CapturedGraph(lambda: x + 1, device)]

    def work() -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            cycle: list[object] = [old.pop()]
            cycle.append(cycle)
            del cycle
            kept = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
            del kept  # so many that Python looks for cycles
        return x * 2

    work()
    graph = CapturedGraph(work, device)
    assert not old
    assert torch.equal(graph(), x * 2)


@pytest.mark.parametrize("rounds", ["host", "device"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_are_not_finite_end_their_own_request(dtype: str, rounds: str) -> None:
    speculation = Speculation(Mode.TREE, budget=16, topk=8)
    batch = decoder(dtype, 2, device_rounds=rounds == "device")
    expected, broken, sound = (Sequence(text(30), 40, speculation=speculation) for _ in range(3))
    run(batch, expected)
    for one in (broken, sound):
        batch.start(one)
        while not one.decoding:
            batch.prefill(one)
    batch.cache.states[:, broken.row] = torch.nan
    run(batch)
    assert broken.finish_reason == "failed"
    assert broken.emitted == []
    assert_same(expected, sound, batch)
