"""Which budget pays: `--budget auto`.

A round with budget b emits a(b) tokens in c(b) seconds, and the b with the highest a(b) / c(b) is
wanted. The costs c are measured on the device before requests come. They are no smooth function:
kernels work in tiles of 16, 32, 64 and 128 nodes, and the root is a node, so candidates are one
less than a tile.

What trees accept is learned from the requests themselves. The tree of a smaller budget is the
first nodes of that of a larger one (`tree.py`), and its accepted path is what the path of the
larger has in it. So a round with budget B tells the acceptance of every b up to B, and now and then
a round with the largest tells of the rest. Each candidate's *gain* over the one before it is
averaged on its own: rounds that know of it are all it takes.

Nothing here changes what is emitted: text does not depend on the shape of trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Budget = int | Literal["auto"]
"""What a user asks for: so many nodes besides the root, or that the tuner chooses."""

CANDIDATES = (3, 7, 15, 31, 63, 127)
"""Budgets that are tried: with the root, tiles that are full."""

MOST = CANDIDATES[-1]

WINDOW = 256
"""Rounds of a request that an average reaches back."""

FIRST = 8
"""Rounds at the start that have the largest budget."""

EXPLORE_EVERY = 32
"""Of so many rounds one has the largest budget."""

EXPLORE_SHARE = 0.01
"""Most of the time that exploring may take beyond what the rounds would take anyway."""

DECIDE_EVERY = 8
"""Rounds between two decisions."""

MARGIN = 1.03
"""How much faster another budget must promise to be: less is noise, and not worth a change."""


@dataclass(slots=True)
class _Mean:
    """A mean that forgets what is older than the window."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, WINDOW)
        self.value += (value - self.value) / self.count


@dataclass(frozen=True)
class RoundCosts:
    """Seconds of a round of one request, by budget.

    Raises:
        ValueError: no budget, or a cost that is not above 0.
    """

    seconds: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds.values()) <= 0.0:
            raise ValueError(f"costs are above 0, got {dict(self.seconds)}")

    def __str__(self) -> str:
        return ", ".join(f"{one}: {1e3 * cost:.2f}" for one, cost in sorted(self.seconds.items()))

    def of(self, budget: int, rows: int = 1) -> float:
        """Seconds of a round of `rows` requests with this budget.

        Of several requests it is taken to be that of one with as many nodes, in between and beyond
        the measured ones by straight lines: what a round computes grows with its nodes. A budget
        that was measured to cost more than a larger one was disturbed, as timings err upwards: it
        costs what the larger one does. A line that fell would end below nothing.
        """
        nodes = rows * (budget + 1)
        points: list[tuple[int, float]] = []
        for known, cost in sorted(self.seconds.items(), reverse=True):
            points.append((known + 1, min(cost, points[-1][1]) if points else cost))
        points.reverse()
        if len(points) == 1 or nodes <= points[0][0]:
            return points[0][1]
        above = next((i for i, (known, _) in enumerate(points) if known >= nodes), len(points) - 1)
        (low, least), (high, most) = points[above - 1], points[above]
        return max(least, most + (most - least) * (nodes - high) / (high - low))


class BudgetTuner:
    """Chooses the budget of each round. One thread asks and tells.

    Attributes:
        costs: of the candidates.
        in_use: the budget decided on; a round that explores has the largest instead.
        rows: requests of the last round.
    """

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self.candidates = tuple(sorted(costs.seconds))
        self.in_use = self.candidates[-1]
        self._gains = [_Mean() for _ in self.candidates]
        self._rounds = 0
        self._explored = 0
        self.rows = 1

    def next(self, rows: int = 1) -> int:
        """The budget of the next round, of so many requests."""
        largest = self.candidates[-1]
        self._rounds += 1
        if self._rounds <= FIRST:
            return largest
        if self._rounds % DECIDE_EVERY == 1 or rows != self.rows:
            self.rows = rows
            self._decide()
        if self._rounds - self._explored >= self._pause():
            self._explored = self._rounds
            return largest
        return self.in_use

    def observe(self, budget: int, path: Sequence[int]) -> None:
        """Take in what a request accepted.

        Args:
            budget: of its tree.
            path: accepted nodes, the root first; any that the end of the request cut off too.
        """
        before = 0
        for candidate, gain in zip(self.candidates, self._gains, strict=True):
            if candidate > budget:
                break
            gain.add(sum(before < node <= candidate for node in path))
            before = candidate

    def tokens_a_round(self, budget: int) -> float | None:
        """Expected acceptance length of a candidate; None before anything is known."""
        if not self._gains[0].count:
            return None
        known = zip(self.candidates, self._gains, strict=True)
        return 1.0 + sum(gain.value for candidate, gain in known if candidate <= budget)

    def tokens_per_second(self, budget: int, rows: int | None = None) -> float | None:
        """Expected speed of a candidate, all requests together; None before anything is known."""
        tokens = self.tokens_a_round(budget)
        if tokens is None:
            return None
        rows = self.rows if rows is None else rows
        return rows * tokens / self.costs.of(budget, rows)

    def _decide(self) -> None:
        speeds = {one: self.tokens_per_second(one) or 0.0 for one in self.candidates}
        best = max(self.candidates, key=lambda one: speeds[one])
        if speeds[best] > MARGIN * speeds[self.in_use]:
            self.in_use = best

    def _pause(self) -> int:
        """Rounds between two that explore."""
        ours = self.costs.of(self.in_use, self.rows)
        more = self.costs.of(self.candidates[-1], self.rows) / ours - 1.0
        return max(EXPLORE_EVERY, round(more / EXPLORE_SHARE))
