"""Trees built on the device against the heap's: exact ties, budgets and widths of one batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddtree_engine.ops.draft_trees import DraftTrees, naive, vectorized
from ddtree_engine.tree import MAX_DEPTH

FORMS = ("vectorized", "kernel")


def candidates(log_probs: Tensor) -> dict[str, Tensor]:
    """Those log-probabilities with anchors and distinct tokens of each depth."""
    B, L, K = log_probs.shape
    return {
        "anchors": torch.arange(B) + 5,
        "log_probs": log_probs,
        "ids": (torch.arange(B * L)[:, None] * 1000 + torch.randperm(K)).view(B, L, K),
    }


def normal(batch: int, depth: int, width: int, seed: int) -> dict[str, Tensor]:
    logits = torch.randn(batch, depth, 512, generator=torch.Generator().manual_seed(seed)) * 3
    return candidates(logits.log_softmax(-1).topk(width, dim=-1).values)


def build(form: str, arguments: dict[str, Any], device: torch.device) -> DraftTrees:
    from ddtree_engine.ops.draft_trees import kernel

    chosen = kernel if form == "kernel" else vectorized
    on_device = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in arguments.items()}
    return DraftTrees(*(x.cpu() for x in chosen.draft_trees(**on_device)))


def assert_same(found: DraftTrees, expected: DraftTrees) -> None:
    for name, got, want in zip(expected._fields, found, expected, strict=True):
        assert got.dtype == want.dtype, name
        assert torch.equal(got, want), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("depth", "width", "budget"), [(15, 8, 16), (15, 64, 64), (6, 128, 128), (63, 3, 70)]
)
def test_is_the_heap_at_real_sizes(
    depth: int, width: int, budget: int, form: str, device: torch.device
) -> None:
    arguments = {
        **normal(2, depth, width, seed=depth + width),
        "budgets": torch.tensor([budget, budget // 3]),
        "widths": torch.tensor([width, width]),
        "budget": budget,
        "conv_kernel": 4,
    }
    assert_same(build(form, arguments, device), naive.draft_trees(**arguments))


@pytest.mark.parametrize("form", FORMS)
def test_every_mode_in_one_batch(form: str, device: torch.device) -> None:
    """A lone anchor, a chain, a short chain, and trees of one and of many candidates a depth."""
    arguments = {
        **normal(5, 5, 6, seed=1),
        "budgets": torch.tensor([0, 5, 3, 20, 12]),
        "widths": torch.tensor([6, 1, 1, 2, 6]),
        "budget": 20,
        "conv_kernel": 4,
    }
    found = build(form, arguments, device)
    assert_same(found, naive.draft_trees(**arguments))
    assert found.sizes.tolist() == [1, 6, 4, 21, 13]
    assert found.parents[1].tolist() == [-1, 0, 1, 2, 3, 4, *[0] * 15]
    assert found.tokens[1, 1:6].tolist() == arguments["ids"][1, :, 0].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_fewer_prefixes_than_budget(form: str, device: torch.device) -> None:
    arguments = {
        **normal(2, 2, 3, seed=2),
        "budgets": torch.tensor([30, 30]),
        "widths": torch.tensor([3, 2]),
        "budget": 30,
        "conv_kernel": 2,
    }
    found = build(form, arguments, device)
    assert_same(found, naive.draft_trees(**arguments))
    assert found.sizes.tolist() == [13, 7]


@st.composite
def tied(draw: st.DrawFn) -> dict[str, Any]:
    """Falling scores from a tiny range: ties everywhere, and more than 2**-44 tells apart."""
    K, L, B = draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.integers(1, 2))
    value = st.sampled_from([0.0, 1e-3, -0.5, -1.0, -1.0 - 2**-23, -(2.0**-46), -3e-14, -9e3])
    row = st.lists(value, min_size=K, max_size=K).map(lambda one: sorted(one, reverse=True))
    log_probs = draw(st.lists(st.lists(row, min_size=L, max_size=L), min_size=B, max_size=B))
    budget = draw(st.integers(0, 40))
    return {
        **candidates(torch.tensor(log_probs)),
        "budgets": torch.tensor([draw(st.integers(0, budget)) for _ in range(B)]),
        "widths": torch.tensor([draw(st.integers(1, K)) for _ in range(B)]),
        "budget": budget,
        "conv_kernel": 3,
    }


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(arguments=tied())
def test_is_the_heap_under_ties(form: str, device: torch.device, arguments: dict[str, Any]) -> None:
    assert_same(build(form, arguments, device), naive.draft_trees(**arguments))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0.0, -float("inf"), float("nan")])
def test_equal_scores_at_the_deepest_tree(value: float, form: str, device: torch.device) -> None:
    """Everything ties: the order is lexicographic; the lowest sums do not overflow."""
    arguments = {
        **candidates(torch.full((1, MAX_DEPTH, 3), value)),
        "budgets": torch.tensor([80]),
        "widths": torch.tensor([3]),
        "budget": 80,
        "conv_kernel": 4,
    }
    found = build(form, arguments, device)
    assert_same(found, naive.draft_trees(**arguments))
