"""Draft trees: scores, structure, the published construction, and the walk."""

from __future__ import annotations

import heapq
import json
import math
from fractions import Fraction
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_engine.errors import EngineError
from ddtree_engine.tree import (
    LOG_PROB_FLOOR,
    MAX_DEPTH,
    SCORE_BITS,
    DraftTree,
    best_first,
    chain,
    fixed_point,
    walk,
)

CASES = json.loads((Path(__file__).parent / "data/best_first_cases.json").read_text())


def ids_for(scores: list[list[int]]) -> list[list[int]]:
    """Token ids that show depth and rank: 10, 11, … at depth 1, 20, 21, … at depth 2."""
    return [[10 * depth + rank for rank in range(len(row))] for depth, row in enumerate(scores, 1)]


@st.composite
def falling_scores(draw: st.DrawFn, *, depth: int = 4, width: int = 4) -> list[list[int]]:
    """Scores with many exact ties: tiny integer range, rows repeated."""
    K = draw(st.integers(1, width))
    row = st.lists(st.integers(-3, 0), min_size=K, max_size=K).map(
        lambda values: sorted(values, reverse=True)
    )
    rows = draw(st.lists(row, min_size=1, max_size=2))
    return draw(st.lists(st.sampled_from(rows), min_size=1, max_size=depth))


@st.composite
def trees(draw: st.DrawFn, *, vocabulary: int = 3, nodes: int = 24) -> DraftTree:
    """Any tree at all over a small vocabulary."""
    tokens, parents = [draw(st.integers(0, vocabulary - 1))], [-1]
    seen: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, nodes))):
        edge = (draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, vocabulary - 1)))
        if edge not in seen:
            seen.add(edge)
            parents.append(edge[0])
            tokens.append(edge[1])
    return DraftTree(tuple(tokens), tuple(parents))


def path_of(tree: DraftTree, node: int) -> list[int]:
    path = [node]
    while path[0]:
        path.insert(0, tree.parents[path[0]])
    return path


class TestFixedPoint:
    def test_float32_log_probs_are_exact(self) -> None:
        values = -np.random.default_rng(0).exponential(3.0, 2000).astype(np.float32) - np.float32(
            2.0**-21
        )
        for value, score in zip(values.tolist(), fixed_point(values).tolist(), strict=True):
            assert Fraction(score, 2**SCORE_BITS) == Fraction(value)

    @pytest.mark.parametrize(
        ("log_prob", "score"),
        [
            (0.0, 0),
            (-1.0, -(2**SCORE_BITS)),
            (-0.6 * 2.0**-SCORE_BITS, -1),
            (-0.4 * 2.0**-SCORE_BITS, 0),
            (1e-7, 0),
            (LOG_PROB_FLOOR, int(LOG_PROB_FLOOR) << SCORE_BITS),
            (-1e30, int(LOG_PROB_FLOOR) << SCORE_BITS),
            (-math.inf, int(LOG_PROB_FLOOR) << SCORE_BITS),
        ],
    )
    def test_rounds_and_clips(self, log_prob: float, score: int) -> None:
        assert fixed_point(np.array([[log_prob]])).tolist() == [[score]]

    def test_deepest_sum_fits_64_bits(self) -> None:
        lowest = int(fixed_point(np.array(-math.inf)))
        assert MAX_DEPTH * lowest >= -(2**63)

    def test_nan_is_an_error(self) -> None:
        with pytest.raises(EngineError, match="NaN") as caught:
            fixed_point(np.array([-1.0, math.nan], dtype=np.float32))
        assert caught.value.hint


class TestDraftTree:
    @pytest.mark.parametrize(
        ("tokens", "parents", "message"),
        [
            ((), (), "at least one node"),
            ((1, 2), (-1,), "one parent for each"),
            ((1, 2), (0, 0), "root"),
            ((1, 2, 3), (-1, 2, 0), "parent comes before"),
            ((1, 2), (-1, 1), "parent comes before"),
            ((1, 2), (-1, -1), "parent comes before"),
            ((1, 2, 2), (-1, 0, 0), "siblings"),
        ],
    )
    def test_rejects(self, tokens: tuple[int, ...], parents: tuple[int, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            DraftTree(tokens, parents)

    def test_cousins_may_share_a_token(self) -> None:
        tree = DraftTree((1, 2, 3, 2, 2), (-1, 0, 0, 1, 2))
        assert tree.children == {(0, 2): 1, (0, 3): 2, (1, 2): 3, (2, 2): 4}

    @given(trees())
    def test_depths_and_ancestors(self, tree: DraftTree) -> None:
        mask = tree.ancestors()
        assert mask.dtype == np.bool_
        assert mask.shape == (tree.budget + 1, tree.budget + 1)
        for node in range(tree.budget + 1):
            path = path_of(tree, node)
            assert np.flatnonzero(mask[node]).tolist() == path
            assert tree.depths[node] == len(path) - 1

    @given(trees(), st.integers(0, 30))
    def test_prefix(self, tree: DraftTree, budget: int) -> None:
        shorter = tree.prefix(budget)
        assert shorter.budget == min(budget, tree.budget)
        assert shorter.tokens == tree.tokens[: budget + 1]
        assert shorter.parents == tree.parents[: budget + 1]

    def test_negative_prefix(self) -> None:
        with pytest.raises(ValueError, match="budget"):
            chain(1, [2]).prefix(-1)

    def test_chain(self) -> None:
        tree = chain(5, [6, 6, 7])
        assert (tree.tokens, tree.parents) == ((5, 6, 6, 7), (-1, 0, 1, 2))
        assert chain(5, []).budget == 0


class TestBestFirst:
    @pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
    def test_worked_examples(self, case: dict[str, Any]) -> None:
        tree = best_first(7, case["scores"], ids_for(case["scores"]), case["budget"])
        assert list(tree.tokens) == case["tokens"]
        assert list(tree.parents) == case["parents"]

    @given(falling_scores(), st.integers(0, 40), st.integers(0, 40))
    def test_smaller_budget_is_a_prefix(self, scores: list[list[int]], a: int, b: int) -> None:
        small, large = sorted((a, b))
        ids = ids_for(scores)
        assert best_first(7, scores, ids, small) == best_first(7, scores, ids, large).prefix(small)

    @settings(max_examples=40)
    @given(falling_scores(depth=3, width=2), st.integers(1, 5))
    def test_no_tree_has_a_larger_sum(self, scores: list[list[int]], budget: int) -> None:
        """Score -s stands for probability 2**-s, so that products and sums are exact."""
        prefixes = [
            ranks
            for depth in range(1, len(scores) + 1)
            for ranks in product(range(len(scores[0])), repeat=depth)
        ]

        def q(ranks: tuple[int, ...]) -> Fraction:
            return Fraction(2) ** sum(row[rank] for row, rank in zip(scores, ranks, strict=False))

        best = max(
            sum(map(q, nodes))
            for nodes in combinations(prefixes, min(budget, len(prefixes)))
            if all(not ranks[:-1] or ranks[:-1] in nodes for ranks in nodes)
        )
        tree = best_first(7, scores, ids_for(scores), budget)
        chosen = [
            tuple(tree.tokens[i] % 10 for i in path_of(tree, node)[1:])
            for node in range(1, tree.budget + 1)
        ]
        assert sum(map(q, chosen)) == best

    @pytest.mark.parametrize(
        ("scores", "ids", "budget", "message"),
        [
            ([[-1]], [[1]], -1, "budget"),
            ([[-1, -2]], [[1]], 2, "shape"),
            ([[-1]], [[1], [2]], 2, "shape"),
            ([[1]], [[1]], 2, "above 0"),
            ([[-2, -1]], [[1, 2]], 2, "fall"),
            ([[-1], [1]], [[1], [2]], 2, "above 0"),
            ([[-1, -2]], [[1, 1]], 2, "siblings"),
        ],
    )
    def test_rejects(
        self, scores: list[list[int]], ids: list[list[int]], budget: int, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            best_first(7, scores, ids, budget)


def published_tree(
    log_probs: np.ndarray[Any, np.dtype[np.float64]], ids: list[list[int]], budget: int
) -> DraftTree:
    """The published algorithm with its own running sums in float64: add the difference to the
    next sibling, add the best of the next depth."""
    tokens, parents = [7], [-1]
    frontier = [(-log_probs[0, 0], (0,), log_probs[0, 0], 0)]
    while frontier and len(tokens) <= budget:
        _, ranks, logw, parent = heapq.heappop(frontier)
        depth, rank = len(ranks) - 1, ranks[-1]
        node = len(tokens)
        tokens.append(ids[depth][rank])
        parents.append(parent)
        grown: list[tuple[tuple[int, ...], np.float64, int]] = []
        if rank + 1 < log_probs.shape[1]:
            sibling = logw - log_probs[depth, rank] + log_probs[depth, rank + 1]
            grown.append(((*ranks[:-1], rank + 1), sibling, parent))
        if depth + 1 < log_probs.shape[0]:
            grown.append(((*ranks, 0), logw + log_probs[depth + 1, 0], node))
        for entry, weight, above in grown:
            heapq.heappush(frontier, (-weight, entry, weight, above))
    return DraftTree(tuple(tokens), tuple(parents))


class TestPublishedAlgorithm:
    @given(
        st.lists(
            st.lists(st.integers(-(2**22), 0), min_size=6, max_size=6), min_size=1, max_size=15
        ),
        st.integers(0, 64),
    )
    def test_same_tree_where_its_sums_are_exact(self, units: list[list[int]], budget: int) -> None:
        log_probs = -np.sort(-np.array(units, dtype=np.float64)) * 2.0**-20
        self.check(log_probs, budget)

    @given(st.integers(1, 8), st.integers(0, 2**32 - 1), st.integers(0, 128))
    def test_same_tree_under_ties(self, levels: int, seed: int, budget: int) -> None:
        units = np.random.default_rng(seed).integers(-levels, 1, (15, 8))
        self.check(-np.sort(-units.astype(np.float64)) * 2.0**-20, budget)

    @pytest.mark.parametrize("seed", range(20))
    def test_same_tree_for_normal_logits(self, seed: int) -> None:
        logits = np.random.default_rng(seed).normal(0.0, 1.0 + seed % 4, (15, 400))
        log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        top = -np.sort(-log_probs.astype(np.float32))[:, :128]
        self.check(top.astype(np.float64), 128)

    def check(self, log_probs: np.ndarray[Any, np.dtype[np.float64]], budget: int) -> None:
        ids = [[1000 * depth + rank for rank in range(log_probs.shape[1])] for depth in range(15)]
        ids = ids[: log_probs.shape[0]]
        built = best_first(7, fixed_point(log_probs).tolist(), ids, budget)
        assert built == published_tree(log_probs, ids, budget)


class TestWalk:
    @given(trees(), st.data())
    def test_is_direct_comparison_of_tokens(self, tree: DraftTree, data: st.DataObject) -> None:
        choices = [data.draw(st.integers(0, 3)) for _ in tree.tokens]
        asked: list[int] = []

        def choose(node: int) -> int:
            asked.append(node)
            return choices[node]

        path, bonus = walk(tree, choose)

        accepted = []
        for node in range(tree.budget + 1):
            steps = path_of(tree, node)
            if all(tree.tokens[b] == choices[a] for a, b in pairwise(steps)):
                accepted.append(steps)
        assert path == max(accepted, key=len)
        assert bonus == choices[path[-1]]
        assert asked == path

    def test_root_alone(self) -> None:
        assert walk(chain(4, []), lambda node: 9) == ([0], 9)

    def test_whole_chain(self) -> None:
        assert walk(chain(4, [5, 6]), lambda node: [5, 6, 7][node]) == ([0, 1, 2], 7)
