"""The token after each node: the faster forms against each node on its own, to the last tie."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddtree_engine.ops.choose_nodes import naive, vectorized
from ddtree_engine.sampling import SamplingParams, SamplingTensors, filter_logits, masses

Form = Callable[..., Tensor]
CASES = json.loads((Path(__file__).parents[1] / "data" / "choice_cases.json").read_text())


@pytest.fixture(params=["vectorized", "kernel"], scope="module")
def choose_nodes(request: pytest.FixtureRequest, device: torch.device) -> Form:
    if request.param == "vectorized":
        return vectorized.choose_nodes
    from ddtree_engine.ops.choose_nodes import kernel

    def on_device(
        logits: Tensor, depths: Tensor, starts: Tensor, params: SamplingTensors, **more: Any
    ) -> Tensor:
        there = SamplingTensors(
            *(
                t.to(device)
                for t in (params.temperatures, params.top_ks, params.top_ps, params.seeds)
            )
        )
        moved = (logits.to(device), depths.to(device), starts.to(device))
        return kernel.choose_nodes(*moved, there, **more).cpu()

    return on_device


def tensors(*params: SamplingParams) -> SamplingTensors:
    return SamplingTensors.of(params, torch.device("cpu"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_cases(case: dict[str, Any], choose_nodes: Form) -> None:
    """Over many positions exactly the tokens that may come do come."""
    logits = torch.tensor([-math.inf if x is None else float(x) for x in case["logits"]])
    params = SamplingParams(
        case.get("temperature", 2.0), case.get("top_k", 0), case.get("top_p", 1.0), seed=11
    )
    depths = torch.arange(24)[None]
    chosen = choose_nodes(
        logits.expand(1, 24, -1).contiguous(),
        depths,
        torch.tensor([5]),
        tensors(params),
        depth=23,
        filters=True,
    )
    assert sorted(set(chosen[0].tolist())) == case["chosen"]


PARAMS = [
    SamplingParams(),
    SamplingParams(0.8, seed=3),
    SamplingParams(1.0, top_k=20, top_p=0.95, seed=2**63 + 5),
    SamplingParams(0.6, top_p=0.9, seed=-3),
    SamplingParams(1.5, top_k=7, seed=4),
    SamplingParams(1.0, top_k=9000, top_p=0.3, seed=4),
    SamplingParams(2.0, top_k=100_000, top_p=0.999, seed=4),
]


@pytest.mark.parametrize(("vocab", "dtype"), [(3, torch.float32), (9001, torch.float16)])
def test_a_batch_of_different_parameters(
    vocab: int, dtype: torch.dtype, choose_nodes: Form
) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(len(PARAMS), 3, vocab, generator=generator) * 2).to(dtype)
    logits[:, 1] = logits[:, 1].round()  # ties all over
    depths = torch.randint(0, 5, (len(PARAMS), 3), generator=generator)
    starts = torch.randint(0, 300_000, (len(PARAMS),), generator=generator)
    given = (logits, depths, starts, tensors(*PARAMS))
    for filters in (True, False):
        expected = naive.choose_nodes(*given, depth=4, filters=filters)
        assert torch.equal(choose_nodes(*given, depth=4, filters=filters), expected)


@given(
    logits=st.lists(st.integers(-3, 3), min_size=1, max_size=9),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([1.0, 0.99, 0.75, 0.5, 0.3, 0.1, 1e-9]),
    seed=st.integers(0, 2**64 - 1),
)
@example(logits=[0] * 8, top_k=0, top_p=0.5, seed=1)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ties_fall_as_they_do_in_the_specification(
    choose_nodes: Form, logits: list[int], top_k: int, top_p: float, seed: int
) -> None:
    params = tensors(SamplingParams(1.0, top_k, top_p, seed))
    rows = torch.tensor(logits, dtype=torch.float32).expand(1, 6, -1).contiguous()
    given_ = (rows, torch.arange(6)[None], torch.tensor([seed % 1000]), params)
    expected = naive.choose_nodes(*given_, depth=5, filters=True)
    assert torch.equal(choose_nodes(*given_, depth=5, filters=True), expected)


@pytest.mark.parametrize("count", [1, 2, 9, 30])
def test_one_unit_of_mass_decides(count: int, choose_nodes: Form) -> None:
    """Half a unit of 2**-40 to either side of a token's mass: it stays, or it does not."""
    logits = torch.linspace(-3000, 200, 64)
    mass = masses(logits / torch.tensor(100.0)).sort(descending=True).values
    reached, total = int(mass[:count].sum()), int(mass.sum())
    last = 64 - count - 1
    for share, stays in (((reached - 0.5) / total, False), ((reached + 0.5) / total, True)):
        params = SamplingParams(100.0, top_p=share, seed=5)
        given = (
            logits.expand(1, 40, -1).contiguous(),
            torch.arange(40)[None],
            torch.tensor([0]),
            tensors(params),
        )
        expected = naive.choose_nodes(*given, depth=39, filters=True)
        assert torch.equal(choose_nodes(*given, depth=39, filters=True), expected)
        kept = filter_logits(logits, params).isfinite()
        assert bool(kept[last]) is stays


def test_a_nan_ends_in_some_token(choose_nodes: Form) -> None:
    logits = torch.randn(1, 2, 50, generator=torch.Generator().manual_seed(0))
    given = (torch.arange(2)[None], torch.tensor([3]), tensors(PARAMS[2]))
    expected = choose_nodes(logits, *given, depth=1, filters=True)
    logits[0, 0, 7] = math.nan
    chosen = choose_nodes(logits, *given, depth=1, filters=True)
    assert 0 <= chosen[0, 0] < 50
    assert chosen[0, 1] == expected[0, 1]
