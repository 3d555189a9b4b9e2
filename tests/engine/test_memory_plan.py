"""Memory is planned as it is then used, and refused with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ddtree_engine.bench.random_model import shape_folder
from ddtree_engine.bench.rounds import Bench
from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.decoder import Decoder
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.engine import load_engine
from ddtree_engine.errors import CapacityError
from ddtree_engine.memory_plan import node_bytes, piece_bytes, plan_memory
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import PREFILL_CHUNK, Mode, Speculation
from ddtree_engine.target import TargetModel

MIB = 1 << 20


def test_the_27b_fits_an_h200_and_no_card_of_half_its_size() -> None:
    folder = shape_folder("qwen3.6-27b")
    target = read_target_config(folder / "target")
    drafter = read_drafter_config(folder / "drafter")
    plan = plan_memory(
        target,
        drafter,
        weights=57 << 30,
        rows=8,
        context=32768,
        budget=64,
        dtype=torch.bfloat16,
    )
    plan.check(free=139 << 30, total=141 << 30)
    with pytest.raises(CapacityError, match=r"needed and 70.00 GiB of 80.00 GiB are free: weights"):
        plan.check(free=70 << 30, total=80 << 30)
    # A tree of 64 nodes and its root leave less behind than a single recurrent state is.
    assert 65 * node_bytes(target, torch.bfloat16) < 100 * MIB


def test_a_round_keeps_what_was_planned(target: TargetModel, drafter: DrafterModel) -> None:
    bench = Bench(target, drafter, rows=1, max_length=40)
    for speculation in (Speculation(Mode.AR), Speculation(Mode.TREE, budget=20, topk=4)):
        shape = bench.shape(speculation, 30, SamplingParams())
        bench.place(shape, 30, SamplingParams())
        steps = bench.round_of(shape)
        found, _ = steps.verify(steps.build(steps.draft()))
        planned = (shape.budget + 1) * node_bytes(target.config, torch.float32)
        assert found.stash.nbytes == planned


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that PyTorch's allocator held for `run` at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = profiled.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in changes))


@pytest.mark.parametrize("tokens", [30, PREFILL_CHUNK])
@pytest.mark.parametrize("speculating", [False, True])
@torch.inference_mode()
def test_a_piece_of_a_prompt_takes_what_was_planned(tokens: int, speculating: bool) -> None:
    demo = load_engine(device="cpu", dtype="float32")
    decoder = Decoder(demo.target, demo.drafter, max_length=PREFILL_CHUNK)
    piece = torch.zeros(1, tokens, dtype=torch.int64)
    used = peak_bytes(lambda: decoder.host_round.append(piece, 0, speculating=speculating))
    assert demo.drafter is not None
    config, small = demo.target.config, demo.drafter.config
    planned = piece_bytes(config, small if speculating else None, tokens, torch.float32)
    assert used <= planned <= 2 * used


def test_caches_take_what_was_planned(target: TargetModel, drafter: DrafterModel) -> None:
    decoder = Decoder(target, drafter, rows=3, max_length=100, device_rounds=True)
    plan = plan_memory(
        target.config,
        drafter.config,
        weights=0,
        rows=3,
        context=100,
        budget=16,
        dtype=torch.float32,
    )
    assert decoder.drafter_cache is not None
    tensors = [
        *(decoder.cache.keys, decoder.cache.values, decoder.cache.tails, decoder.cache.states),
        *(decoder.drafter_cache.keys, decoder.drafter_cache.values),
    ]
    used = sum(tensor.nbytes for tensor in tensors)
    assert used <= plan.caches <= 1.02 * used
