"""Acceptance lengths from teacher-forced drafts: an estimate that needs no engine.

The target's own greedy text is known. If the drafter's candidates are known at every place of it,
the rounds of any mode can be replayed: start at the last prompt token, walk the draft tree along
the text, emit the accepted tokens and the bonus, start again from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddtree_engine.tree import DraftTree, best_first, chain, fixed_point

BUDGETS = (16, 64)


def acceptance_lengths(
    texts: NDArray[np.integer],
    first_anchor: int,
    log_probs: NDArray[np.floating],
    candidates: NDArray[np.integer],
    budgets: Sequence[int] = BUDGETS,
) -> dict[str, float]:
    """Mean tokens a round, of the chain (``tau_linear``) and of trees (``tau_tree16`` …).

    Args:
        texts: ``[R, T]`` prompts and continuations.
        first_anchor: index of the last prompt token.
        log_probs: ``[R, A, L, K]`` of the ``K`` best candidates at each of the ``L`` depths of a
            block, falling, for the anchors ``first_anchor .. first_anchor + A - 1``.
        candidates: ``[R, A, L, K]`` their token ids.
        budgets: nodes of the trees.
    """
    scores = fixed_point(log_probs)
    # Rounding may not make a later candidate better than an earlier one.
    scores = np.minimum.accumulate(scores, axis=-1)
    rounds = dict.fromkeys(["linear", *(f"tree{budget}" for budget in budgets)], 0)
    emitted = 0
    for row, text in enumerate(texts):
        emitted += len(text) - 1 - first_anchor
        for mode in rounds:
            place = first_anchor
            while place < len(text) - 1:
                index = place - first_anchor
                tree = _tree(mode, int(text[place]), scores[row, index], candidates[row, index])
                place += 1 + _accepted(tree, text[place + 1 :])
                rounds[mode] += 1
    return {f"tau_{mode}": emitted / count for mode, count in rounds.items()}


def _tree(
    mode: str, anchor: int, scores: NDArray[np.int64], candidates: NDArray[np.integer]
) -> DraftTree:
    if mode == "linear":
        return chain(anchor, candidates[:, 0].tolist())
    budget = int(mode.removeprefix("tree"))
    return best_first(anchor, scores.tolist(), candidates.tolist(), budget)


def _accepted(tree: DraftTree, following: NDArray[np.integer]) -> int:
    node = accepted = 0
    for token in following.tolist():
        child = tree.children.get((node, token))
        if child is None:
            return accepted
        node = child
        accepted += 1
    return accepted
