"""A request on its way through the scheduler, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

from ddtree_engine.errors import EngineError
from ddtree_engine.sequence import Sequence
from ddtree_engine.shadow import ShadowSummary
from ddtree_engine.text_stream import TextStream


class CancelledError(EngineError):
    """The request was cancelled, usually since its client left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a request.

    Attributes:
        finish_reason: "stop" (a stop token or stop string) or "length".
        prompt_tokens, completion_tokens: as billed: the token that ended the text is counted.
        rounds: verify passes.
        decode_seconds: wall time of the rounds that this request took part in.
        shadow: evidence of a shadow request.
    """

    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    rounds: int
    decode_seconds: float
    shadow: ShadowSummary | None

    @property
    def acceptance_length(self) -> float:
        """Tokens a round."""
        return self.completion_tokens / self.rounds


Event = str | Outcome | EngineError
"""What a job delivers: pieces of text, then its outcome or the error that ended it."""


@dataclass(eq=False, slots=True)
class Job:
    """A request on its way through the scheduler.

    Attributes:
        sequence: for the decoder.
        text: turns its tokens into text.
        deliver: called by the decode thread with each event; must not block.
        as_served: whether it speculates as the server does by default. Totals, which tell how a
            deployed mode does, count these requests only.
    """

    sequence: Sequence
    text: TextStream
    deliver: Callable[[Event], None]
    as_served: bool = True
    arrived: float = field(default_factory=monotonic)
    completion_tokens: int = 0
    decode_seconds: float = 0.0
    cancelled: bool = False

    @property
    def mode(self) -> str:
        """Its mode, as metrics name it."""
        return self.sequence.speculation.mode.value
