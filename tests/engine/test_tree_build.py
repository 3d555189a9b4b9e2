"""Tree construction: enumeration, heap and level-wise search agree exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddtree_engine.ops.tree_build import TreeShape, naive, tree_build
from ddtree_engine.tree import LOG_PROB_FLOOR, MAX_DEPTH, SCORE_BITS, best_first, fixed_point


def heap(scores: Tensor, budget: int) -> TreeShape:
    """The heap's trees of a batch; token ids are ranks."""
    columns: list[list[list[int]]] = []
    for rows in scores.tolist():
        tree = best_first(0, rows, [list(range(len(row))) for row in rows], budget)
        padding = budget - tree.budget
        columns.append(
            [
                [*tree.parents, *[0] * padding],
                [*tree.depths, *[-1] * padding],
                [*tree.tokens, *[0] * padding],
            ]
        )
    return TreeShape(*torch.tensor(columns).unbind(1))


def assert_same(one: TreeShape, other: TreeShape) -> None:
    for name, left, right in zip(TreeShape._fields, one, other, strict=True):
        assert left.dtype == right.dtype == torch.int64
        assert torch.equal(left, right), name


@st.composite
def tied_scores(draw: st.DrawFn, *, depth: int, width: int) -> Tensor:
    """Falling scores from a tiny range, each row drawn from at most two: ties everywhere."""
    K = draw(st.integers(1, width))
    row = st.lists(st.integers(-3, 0), min_size=K, max_size=K).map(
        lambda values: sorted(values, reverse=True)
    )
    rows = draw(st.lists(row, min_size=1, max_size=2))
    L = draw(st.integers(1, depth))
    batch = st.lists(
        st.lists(st.sampled_from(rows), min_size=L, max_size=L), min_size=1, max_size=3
    )
    return torch.tensor(draw(batch), dtype=torch.int64)


def normal_scores(batch: int, depth: int, width: int, seed: int) -> Tensor:
    logits = torch.randn(batch, depth, 512, generator=torch.Generator().manual_seed(seed)) * 3
    top = logits.log_softmax(-1).topk(width, dim=-1).values
    return torch.from_numpy(fixed_point(top.numpy()))


@given(tied_scores(depth=4, width=4), st.integers(0, 40))
def test_heap_and_levelwise_follow_the_specification(scores: Tensor, budget: int) -> None:
    expected = naive.tree_build(scores, budget)
    assert_same(heap(scores, budget), expected)
    assert_same(tree_build(scores, budget), expected)


@pytest.mark.parametrize("seed", range(4))
def test_specification_on_normal_logits(seed: int) -> None:
    scores = normal_scores(2, 4, 5, seed)
    expected = naive.tree_build(scores, 64)
    assert_same(heap(scores, 64), expected)
    assert_same(tree_build(scores, 64), expected)


@settings(max_examples=30)
@given(tied_scores(depth=15, width=10), st.sampled_from([16, 64, 128]))
def test_levelwise_is_the_heap_under_ties(scores: Tensor, budget: int) -> None:
    assert_same(tree_build(scores, budget), heap(scores, budget))


@pytest.mark.parametrize(
    ("depth", "width", "budget"), [(15, 8, 16), (15, 64, 64), (15, 128, 128), (63, 3, 128)]
)
def test_levelwise_is_the_heap_at_real_sizes(depth: int, width: int, budget: int) -> None:
    scores = normal_scores(3, depth, width, seed=depth + width)
    assert_same(tree_build(scores, budget), heap(scores, budget))


def test_all_zero_scores_go_depth_first() -> None:
    """Everything ties, at the deepest tree: the order is lexicographic, over many key words."""
    scores = torch.zeros(2, MAX_DEPTH, 100, dtype=torch.int64)
    built = tree_build(scores, 128)
    assert_same(built, heap(scores, 128))
    assert built.depths[0, : MAX_DEPTH + 1].tolist() == list(range(MAX_DEPTH + 1))


@pytest.mark.parametrize("budget", range(30, 45))
def test_tie_at_the_cut_of_a_level(budget: int) -> None:
    """Prefix (1, 0) scores above (0, 2), which precedes it; their extensions tie by the dozen at
    depth 3, more than the budget has room for."""
    rows = [[0, -1], [0, -1, -3], [0] + [-2] * 11]
    scores = torch.tensor([[row + [-20] * (12 - len(row)) for row in rows]])
    expected = naive.tree_build(scores, budget)
    assert_same(heap(scores, budget), expected)
    assert_same(tree_build(scores, budget), expected)


def test_lowest_scores_do_not_overflow() -> None:
    scores = torch.full((1, MAX_DEPTH, 1), int(LOG_PROB_FLOOR) << SCORE_BITS)
    built = tree_build(scores, 100)
    assert built.parents[0, : MAX_DEPTH + 1].tolist() == list(range(-1, MAX_DEPTH))
    assert_same(built, heap(scores, 100))


@given(tied_scores(depth=5, width=4), st.integers(0, 60), st.integers(0, 60))
def test_structure(scores: Tensor, budget: int, larger: int) -> None:
    built = tree_build(scores, budget)
    more = tree_build(scores, budget + larger)
    for small, large in zip(built, more, strict=True):
        assert torch.equal(small, large[:, : budget + 1])
    nodes = torch.arange(budget + 1)
    real = built.depths > 0
    assert (built.parents < nodes.clamp(min=1)).all()
    parent_depth = built.depths.gather(1, built.parents.clamp(min=0))
    assert torch.equal(built.depths[real], parent_depth[real] + 1)


def test_each_request_is_built_alone() -> None:
    scores = normal_scores(4, 6, 8, seed=1)
    together = tree_build(scores, 32)
    for row in range(4):
        alone = tree_build(scores[row : row + 1], 32)
        assert_same(alone, TreeShape(*(column[row : row + 1] for column in together)))


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (2, 3, 4)])
def test_root_alone(shape: tuple[int, int, int]) -> None:
    budget = 0 if shape == (2, 3, 4) else 2
    built = tree_build(torch.zeros(shape, dtype=torch.int64), budget)
    assert built.parents.tolist() == [[-1] + [0] * budget] * 2
    assert built.depths.tolist() == [[0] + [-1] * budget] * 2
    assert built.ranks.tolist() == [[0] * (budget + 1)] * 2


@pytest.mark.parametrize(
    ("depth", "budget", "message"), [(3, -1, "budget"), (MAX_DEPTH + 1, 4, "deep")]
)
def test_rejects(depth: int, budget: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tree_build(torch.zeros(1, depth, 2, dtype=torch.int64), budget)
