"""The budget of each round for the requests that leave it to the tuner.

All of them have the same one in a round, up to the most that each of them allows.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ddtree_engine.budget_tuner import BudgetTuner
from ddtree_engine.row_state import RowState
from ddtree_engine.sequence import Sequence


def begin(tuner: BudgetTuner | None, sequence: Sequence) -> None:
    """Give a request that begins to decode the budget that the others have."""
    if tuner is not None and sequence.speculation.tuned:
        sequence.budget = min(tuner.in_use, sequence.speculation.budget)


def choose(tuner: BudgetTuner | None, running: SequenceOf[Sequence], state: RowState) -> None:
    """Settle the budget of the next round of `running`."""
    tuned = [one for one in running if one.speculation.tuned]
    if tuner is None or not tuned:
        return
    budget = tuner.next(len(running))
    for one in tuned:
        chosen = min(budget, one.speculation.budget)
        if one.budget != chosen:
            # Rounds in flight come before this write on the device.
            state.budgets[one.row] = one.budget = chosen


def learn(
    tuner: BudgetTuner | None, sequence: Sequence, budget: int, path: SequenceOf[int]
) -> None:
    """Tell the tuner which nodes of a tree of `budget` a sound round accepted."""
    if tuner is not None and sequence.speculation.tuned:
        tuner.observe(budget, path)
