"""One request while it runs: what it asks for, and what it has got."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ddtree_engine.errors import RequestError
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.shadow import ShadowEvidence
from ddtree_engine.tree import MAX_BUDGET, MAX_TOPK

FinishReason = Literal["stop", "length", "failed"]


PREFILL_CHUNK = 1024
"""Prompt tokens a prefill step takes; a running request waits for no more between two rounds.

Of a 27B on an H200 the host launches a piece in about 85 ms, whatever its length. The GPU is busy
for 41 ms of that with 512 tokens, with 1,024 for nearly all of it: more would make others wait.
"""


class Mode(StrEnum):
    """The shape of a round's tree."""

    AR = "ar"
    LINEAR = "linear"
    SHADOW = "shadow"
    TREE = "tree"


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one request speculates.

    Attributes:
        mode: the shape.
        budget: nodes of a tree besides the root; used by `tree` only.
        topk: candidates a depth; used by `tree` and by the trees that `shadow` records.
        auto: whether the decoder chooses the budget of each round, which is `budget` at most.

    Raises:
        RequestError: a number below 1, or over `MAX_BUDGET` or `MAX_TOPK`.
    """

    mode: Mode = Mode.TREE
    budget: int = 16
    topk: int = 8
    auto: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (
            ("budget", self.budget, MAX_BUDGET),
            ("topk", self.topk, MAX_TOPK),
        ):
            if value < 1:
                raise RequestError(f"{name} must be 1 or more, got {value}")
            if value > most:
                raise RequestError(f"{name} {value} is over the limit of {most}")

    @property
    def drafts(self) -> bool:
        """Whether it needs the drafter."""
        return self.mode is not Mode.AR

    @property
    def tuned(self) -> bool:
        """Whether its budget is chosen round by round."""
        return self.auto and self.mode is Mode.TREE

    @property
    def candidates(self) -> int:
        """How many candidates a depth its trees look at."""
        return self.topk if self.mode in (Mode.TREE, Mode.SHADOW) else 1


@dataclass(slots=True)
class Sequence:
    """One request while it runs.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: how many tokens to emit at most.
        sampling, speculation: how.
        stop_ids: tokens that end the request; the one that does is emitted.
        emitted: tokens so far, never more than `max_tokens`.
        rounds: verify passes so far, prefill apart.
        accepted: for each round, how many tokens it emitted.
        finish_reason: "stop" or "length" once the request has ended; "failed" when numbers on its
            own path were not finite: that round emits nothing.
        shadow: evidence of a shadow request.
        budget: nodes besides the root of its next tree, in `tree` mode.
        path: nodes that it accepted in its last round, where the host led it.
    """

    prompt: SequenceOf[int]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: Speculation = field(default_factory=Speculation)
    stop_ids: frozenset[int] = frozenset()
    emitted: list[int] = field(default_factory=list)
    rounds: int = 0
    accepted: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    shadow: ShadowEvidence | None = None
    prefilled: int = 0
    row: int = -1
    budget: int = field(init=False)
    path: SequenceOf[int] = ()

    def __post_init__(self) -> None:
        self.budget = self.speculation.budget

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt but its last token is committed."""
        return self.prefilled == len(self.prompt) - 1

    @property
    def anchor(self) -> int:
        """The last known token, not yet committed."""
        return self.emitted[-1] if self.emitted else self.prompt[-1]

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted per round; None before the first round."""
        return len(self.emitted) / self.rounds if self.rounds else None

    def take(self, tokens: SequenceOf[int]) -> list[int]:
        """Emit the tokens of a round up to a stop token or `max_tokens`; return those emitted."""
        taken: list[int] = []
        for token in tokens:
            taken.append(token)
            if token in self.stop_ids:
                self.finish_reason = "stop"
                break
            if len(self.emitted) + len(taken) == self.max_tokens:
                self.finish_reason = "length"
                break
        self.emitted.extend(taken)
        self.rounds += 1
        self.accepted.append(len(taken))
        return taken
