"""Shadow evidence: what trees of several budgets would have accepted, while a chain decodes.

Decoding is lossless: whatever the shape of the tree, the target picks the same token at the same
position. The tokens that a chain goes on to emit therefore are the choices that a tree verified at
the same anchor would have met. Matching the tree against them gives its acceptance length exactly,
with no pass of the target; and since the tree of a smaller budget is a prefix of the tree of a
larger one, one build at the largest budget serves all.

The *acceptance length* of a round is the number of tokens it emits: accepted drafts + the bonus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddtree_engine.tree import DraftTree, chain

BUDGETS = (8, 16, 32, 64, 128)
"""Budgets in evidence. Trees to record are built with the largest."""

LINEAR = "linear"
"""Name of the chain among the shapes; a tree goes by its budget in decimal."""

SHAPES = (LINEAR, *(str(budget) for budget in BUDGETS))
"""Names of all shapes in evidence, in the order of reports."""


@dataclass(frozen=True)
class ShadowSummary:
    """Evidence over resolved rounds; every shape is counted over the same rounds.

    Attributes:
        histograms: for each of `SHAPES`, how many rounds had each acceptance length.
        censored: rounds left out since their request ended before every shape was decided.
    """

    histograms: Mapping[str, Mapping[int, int]]
    censored: int

    @property
    def rounds(self) -> int:
        """Number of resolved rounds."""
        return sum(self.histograms[LINEAR].values())

    def mean(self, shape: str) -> float | None:
        """Mean acceptance length of one of `SHAPES`; None where no round is resolved."""
        histogram = self.histograms[shape]
        rounds = sum(histogram.values())
        if rounds == 0:
            return None
        return sum(length * count for length, count in histogram.items()) / rounds


@dataclass
class _Matching:
    """One shape of one round, matched as far as tokens are known."""

    tree: DraftTree
    path: list[int] = field(default_factory=lambda: [0])
    decided: bool = False
    inner: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.inner = frozenset(self.tree.parents)

    def advance(self, tokens: Sequence[int], anchor_index: int) -> None:
        """Go down the tree; decided at the first token that no child carries, or at a leaf."""
        while not self.decided:
            node = self.path[-1]
            index = anchor_index + len(self.path)
            if node not in self.inner:
                self.decided = True
            elif index >= len(tokens):
                return
            elif (child := self.tree.children.get((node, tokens[index]))) is None:
                self.decided = True
            else:
                self.path.append(child)


@dataclass
class _Round:
    anchor_index: int
    tree: _Matching
    chain: _Matching


class ShadowEvidence:
    """Evidence of one request: record a round when it drafts, resolve as tokens become known."""

    def __init__(self) -> None:
        self._pending: list[_Round] = []
        self._histograms: dict[str, Counter[int]] = {shape: Counter() for shape in SHAPES}
        self._censored = 0

    def record(self, tree: DraftTree, anchor_index: int, drafts: Sequence[int]) -> None:
        """Add one round.

        Args:
            tree: best-first tree at the round's anchor, of the largest of `BUDGETS`.
            anchor_index: index of the anchor in the tokens that `resolve` will be given.
            drafts: tokens of the chain of the same round. They are not all in the tree: a chain may
                be deeper than a tree of the same drafts.
        """
        drafted = chain(tree.tokens[0], drafts)
        self._pending.append(_Round(anchor_index, _Matching(tree), _Matching(drafted)))

    def resolve(self, tokens: Sequence[int], *, finished: bool) -> list[dict[str, int]]:
        """Decide the rounds that the known tokens decide.

        A round is decided when, for the tree and for the chain, the next known token is no child or
        the path has come to a leaf. When the request is finished, the rounds that are still open
        are counted as censored: their acceptance would have depended on tokens never chosen.

        Args:
            tokens: all tokens known so far, in the numbering of `record`'s `anchor_index`
                (for instance the prompt and what was emitted).
            finished: whether no more tokens will follow.

        Returns:
            The acceptance length of every shape, one mapping for each newly decided round.
        """
        decided: list[dict[str, int]] = []
        still_open: list[_Round] = []
        for one in self._pending:
            one.tree.advance(tokens, one.anchor_index)
            one.chain.advance(tokens, one.anchor_index)
            if one.tree.decided and one.chain.decided:
                decided.append(_acceptance_lengths(one))
            else:
                still_open.append(one)
        for lengths in decided:
            for shape, length in lengths.items():
                self._histograms[shape][length] += 1
        if finished:
            self._censored += len(still_open)
            still_open = []
        self._pending = still_open
        return decided

    @property
    def pending(self) -> int:
        """Number of rounds that wait for more tokens."""
        return len(self._pending)

    def summary(self) -> ShadowSummary:
        """Return the evidence so far, pending rounds apart."""
        histograms = {shape: dict(sorted(self._histograms[shape].items())) for shape in SHAPES}
        return ShadowSummary(histograms, self._censored)


def merge(summaries: Iterable[ShadowSummary]) -> ShadowSummary:
    """Add up the evidence of several requests."""
    totals: dict[str, Counter[int]] = {shape: Counter() for shape in SHAPES}
    censored = 0
    for summary in summaries:
        censored += summary.censored
        for shape, total in totals.items():
            total.update(summary.histograms[shape])
    histograms = {shape: dict(sorted(total.items())) for shape, total in totals.items()}
    return ShadowSummary(histograms, censored)


def _acceptance_lengths(decided: _Round) -> dict[str, int]:
    """Nodes of a matched path with an index up to a budget form the path in that budget's tree."""
    lengths = {LINEAR: len(decided.chain.path)}
    for budget in BUDGETS:
        lengths[str(budget)] = sum(node <= budget for node in decided.tree.path)
    return lengths
