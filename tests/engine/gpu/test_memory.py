"""Memory runs out when something is admitted, or never."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ddtree_engine.decoder import Decoder
from ddtree_engine.engine import DEMO
from ddtree_engine.errors import CapacityError, RequestError
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from ddtree_engine.warm_up import warm_up
from tests.engine.gpu.conftest import assert_same, load, text
from tests.engine.test_decoder import run

TREE = Speculation(Mode.TREE, budget=16, topk=8)
MIB = 1 << 20
FRAGMENTS = 64 * MIB
"""What PyTorch's allocator may lose to pieces that fit nothing: it takes 20 MiB at a time."""


def give_back() -> None:
    """Return to the device what earlier tests have left in PyTorch's cache."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@contextmanager
def limit(more: int) -> Iterator[None]:
    """Let the process take only so many bytes beyond what it holds."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def of_all_kinds() -> list[Sequence]:
    shapes = [Speculation(Mode.AR), Speculation(Mode.LINEAR), Speculation(Mode.SHADOW), TREE]
    samplings = [SamplingParams(), SamplingParams(0.8), SamplingParams(0.8, top_k=20, top_p=0.9)]
    return [
        Sequence(text(length), 30, sampling, shape)
        for length in (1, 7, 40, 200, 900, 2_040)
        for shape in shapes
        for sampling in samplings
    ]


def test_caches_without_memory_are_refused_and_nobody_is_harmed() -> None:
    gpu = load("cuda", "bfloat16")
    decoder = Decoder(gpu.target, gpu.drafter, max_length=300, device_rounds=True)
    expected, runs = (Sequence(text(50), 100, speculation=TREE) for _ in range(2))
    run(decoder, expected)
    decoder.start(runs)
    decoder.prefill(runs)
    decoder.round()
    give_back()
    with limit(256 * MIB):
        held = torch.cuda.memory_allocated()
        with pytest.raises(CapacityError, match=r"64 x 4096 tokens: they take .* GiB, and .* free"):
            Decoder(gpu.target, gpu.drafter, rows=64, max_length=4_096)
        gc.collect()
        assert torch.cuda.memory_allocated() == held
        while runs.finish_reason is None:
            decoder.round()
    assert_same(expected, runs, Decoder(gpu.target, gpu.drafter, max_length=300))


def test_what_has_no_memory_is_refused_before_any_request() -> None:
    """The largest piece of a prompt comes first, then the largest round; either may not fit."""
    gpu = load("cuda", "bfloat16")
    give_back()
    decoder = Decoder(gpu.target, gpu.drafter, rows=32, max_length=1_000, device_rounds=True)
    refused = pytest.raises(CapacityError, match=r"no memory for a (piece of 1024|round of 32)")
    with limit(16 * MIB), refused:
        decoder.rehearse(budget=128, topk=8)


def test_what_is_admitted_needs_no_more_memory() -> None:
    gpu = load("cuda", "bfloat16")
    give_back()
    decoder = Decoder(gpu.target, gpu.drafter, rows=64, max_length=2_100, device_rounds=True)
    before = torch.cuda.memory_reserved()
    decoder.rehearse(budget=128, topk=8)
    rehearsed = torch.cuda.memory_reserved() - before
    warm_up(decoder, budget=128, topk=8)
    print(f"rehearsal {rehearsed / MIB:.0f} MiB, {torch.cuda.memory_reserved() / MIB:.0f} in all")
    assert rehearsed > 2 * FRAGMENTS, "the limit would not be felt"
    together = of_all_kinds()
    with limit(FRAGMENTS):
        run(decoder, *together)
        with pytest.raises(RequestError, match="2000 prompt tokens and max_tokens 101 exceed"):
            decoder.start(Sequence(text(2_000), 101))
        all_rows = [Sequence(text(9), 20, speculation=TREE) for _ in range(64)]
        for one in all_rows:
            decoder.start(one)
        with pytest.raises(CapacityError, match="all 64 rows are taken"):
            decoder.start(Sequence(text(9), 20))
        run(decoder)
    assert all(len(one.emitted) == 20 for one in all_rows)
    judge = Decoder(gpu.target, gpu.drafter, max_length=2_100)
    for one, other in zip(of_all_kinds(), together, strict=True):
        run(judge, one)
        assert_same(one, other, judge)


def test_a_server_that_cannot_fit_says_so_with_numbers(tmp_path: Path) -> None:
    """The demo with a context so long that 1,024 requests of it fit no GPU."""
    arguments = ["--device", "cuda", "--port", "0", "--max-running", "1024"]
    for part, option in (("target", "--model"), ("drafter", "--drafter")):
        folder = tmp_path / part
        shutil.copytree(DEMO / part, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = 1 << 20
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        arguments += [option, str(folder)]
    served = subprocess.run(
        [sys.executable, "-m", "ddtree_engine", "serve", *arguments, "--max-context", "1048576"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert served.returncode == 1
    assert "GiB are needed and" in served.stderr
    assert "hint: ask for fewer requests at once" in served.stderr
