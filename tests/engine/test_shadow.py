"""Shadow evidence equals walking a tree of every budget along the tokens that followed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_engine.shadow import BUDGETS, LINEAR, SHAPES, ShadowEvidence, ShadowSummary, merge
from ddtree_engine.tree import DraftTree, best_first, chain, walk


class UnknownTokenError(Exception):
    """A walk asked for a token that the request never chose."""


class Drafts:
    """A round's candidates: right often enough for long paths, over a vocabulary of four.

    Flat scores below 0 make the tree wide, so that its budget ends before the chain's depth.
    """

    def __init__(self, random: Random, truth: list[int], anchor_index: int) -> None:
        depth = random.randint(1, 9)
        best, spread = random.randint(0, 1), random.choice([0, 1, 6])
        self.anchor = truth[anchor_index]
        self.anchor_index = anchor_index
        self.scores, self.token_ids = [], []
        for position in range(anchor_index + 1, anchor_index + 1 + depth):
            ids = random.sample(range(4), 3)
            if position < len(truth) and truth[position] in ids and random.random() < 0.6:
                ids.sort(key=lambda token: token != truth[position])
            self.token_ids.append(ids)
            self.scores.append(
                sorted((-random.randint(best, best + spread) for _ in ids), reverse=True)
            )

    @property
    def linear(self) -> list[int]:
        return [ids[0] for ids in self.token_ids]

    def tree(self, budget: int) -> DraftTree:
        return best_first(self.anchor, self.scores, self.token_ids, budget)


def acceptance(tree: DraftTree, known: list[int], anchor_index: int) -> int | None:
    """Acceptance length by the walk; None where it takes a token that isn't known.

    After a leaf any bonus will do: the length counts it unseen.
    """

    def choose(node: int) -> int:
        if node not in tree.parents:
            return -1
        index = anchor_index + 1 + tree.depths[node]
        if index >= len(known):
            raise UnknownTokenError
        return known[index]

    try:
        return len(walk(tree, choose)[0])
    except UnknownTokenError:
        return None


def expected_lengths(drafts: Drafts, known: list[int]) -> dict[str, int] | None:
    """Lengths of all shapes, each by its own tree; None while the largest or the chain is open."""
    lengths = {LINEAR: acceptance(chain(drafts.anchor, drafts.linear), known, drafts.anchor_index)}
    for budget in BUDGETS:
        lengths[str(budget)] = acceptance(drafts.tree(budget), known, drafts.anchor_index)
    decided = {shape: length for shape, length in lengths.items() if length is not None}
    if LINEAR in decided and str(BUDGETS[-1]) in decided:
        assert decided.keys() == lengths.keys()
        return decided
    return None


def histogram(lengths: list[dict[str, int]], shape: str) -> dict[int, int]:
    return dict(Counter(one[shape] for one in lengths))


@given(st.integers(0, 2**32 - 1))
def test_evidence_is_direct_recomputation(seed: int) -> None:
    random = Random(seed)
    truth = [random.randrange(4) for _ in range(random.randint(2, 40))]
    evidence = ShadowEvidence()
    rounds: list[Drafts] = []
    resolved: list[dict[str, int]] = []
    known = 1
    while known < len(truth):
        drafts = Drafts(random, truth, known - 1)
        rounds.append(drafts)
        evidence.record(drafts.tree(BUDGETS[-1]), drafts.anchor_index, drafts.linear)
        known = min(known + random.randint(1, 6), len(truth))
        resolved += evidence.resolve(truth[:known], finished=False)
        now = [expected_lengths(one, truth[:known]) for one in rounds]
        assert len(resolved) == sum(one is not None for one in now)
        assert evidence.pending == now.count(None)
    assert evidence.resolve(truth, finished=True) == []

    lengths = [expected_lengths(one, truth) for one in rounds]
    complete = [one for one in lengths if one is not None]
    summary = evidence.summary()
    assert evidence.pending == 0
    assert summary.rounds == len(complete)
    assert summary.censored == lengths.count(None)
    assert sorted(map(sorted, (one.items() for one in resolved))) == sorted(
        map(sorted, (one.items() for one in complete))
    )
    for shape in SHAPES:
        assert summary.histograms[shape] == histogram(complete, shape)
        if complete:
            mean = sum(one[shape] for one in complete) / len(complete)
            assert summary.mean(shape) == pytest.approx(mean)


def evidence_of(drafts: list[int], tokens: list[int], *, finished: bool) -> ShadowEvidence:
    """One round whose tree is the chain of its drafts, anchor 0."""
    evidence = ShadowEvidence()
    evidence.record(chain(0, drafts), 0, drafts)
    evidence.resolve(tokens, finished=finished)
    return evidence


@pytest.mark.parametrize(
    ("tokens", "length"),
    [([0, 9], 1), ([0, 1, 9], 2), ([0, 1, 2, 9], 3), ([0, 1, 2, 3], 4)],
    ids=["first miss", "second miss", "third miss", "leaf reached, bonus unseen"],
)
def test_a_round_is_decided_as_soon_as_it_can_be(tokens: list[int], length: int) -> None:
    assert evidence_of([1, 2, 3], tokens[:-1], finished=False).pending == 1
    summary = evidence_of([1, 2, 3], tokens, finished=False).summary()
    assert summary.histograms == {shape: {length: 1} for shape in SHAPES}


def test_a_cut_round_is_censored_and_counts_nowhere_else() -> None:
    summary = evidence_of([1, 2, 3], [0, 1, 2], finished=True).summary()
    assert summary.censored == 1
    assert summary.rounds == 0
    assert summary.mean(LINEAR) is None


def test_a_chain_deeper_than_the_tree() -> None:
    """The tree is decided at its leaf, the round only with the chain."""
    drafts = list(range(1, 13))
    evidence = ShadowEvidence()
    evidence.record(chain(0, drafts[:10]), 0, drafts)
    assert evidence.resolve(list(range(12)), finished=False) == []
    assert evidence.pending == 1
    (lengths,) = evidence.resolve(list(range(13)), finished=False)
    assert lengths == {LINEAR: 13, "8": 9, "16": 11, "32": 11, "64": 11, "128": 11}


def test_merge_adds_up() -> None:
    a = evidence_of([1, 2], [0, 1, 9], finished=True).summary()
    b = evidence_of([1, 2], [0, 9], finished=True).summary()
    c = evidence_of([1, 2], [0, 1], finished=True).summary()
    merged = merge([a, b, b, c])
    assert merged == ShadowSummary({shape: {1: 2, 2: 1} for shape in SHAPES}, censored=1)
    assert merged.rounds == 3
    assert merged.mean("64") == pytest.approx(4 / 3)
    assert merge([]).rounds == 0
