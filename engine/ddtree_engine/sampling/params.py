"""How a request chooses its tokens: as it says, and where the device can read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree_engine.errors import RequestError

MIN_TEMPERATURE = 1e-4
"""Lowest temperature above 0: below it float32 scores would drown the noise."""

MAX_TEMPERATURE = 1e4
"""Highest temperature: at it nearly all tokens are alike, and float32 still holds it with ease."""

MAX_TOP_K = 2**31 - 1
"""More than any vocabulary has: whatever is above keeps all tokens as well."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request chooses its tokens.

    Attributes:
        temperature: 0 is greedy (argmax, lowest id on a tie); else from `MIN_TEMPERATURE` to
            `MAX_TEMPERATURE`.
        top_k: keep this many most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches this; in (0, 1].
        seed: 64 bits, signed or unsigned; the noise of the request.

    Raises:
        RequestError: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.greedy or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE):
            raise RequestError(
                f"temperature must be 0, or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}, "
                f"got {self.temperature}",
                hint="0 chooses the most probable token each time",
            )
        if self.top_k < 0:
            raise RequestError(
                f"top_k must be 0 or more, got {self.top_k}", hint="0 keeps all tokens"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(
                f"top_p must be above 0 and at most 1, got {self.top_p}", hint="1 keeps all tokens"
            )
        if not -(2**63) <= self.seed < 2**64:
            raise RequestError(f"seed must fit 64 bits, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """Whether each token is the argmax, with no noise."""
        return self.temperature == 0.0

    @property
    def filters(self) -> bool:
        """Whether it leaves tokens out."""
        return self.top_k > 0 or self.top_p < 1.0


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of B requests where the device can read them.

    Attributes:
        temperatures: [B] float32; 0 is greedy.
        top_ks: [B] int64; 0 keeps all.
        top_ps: [B] float64.
        seeds: [B] int64, the 64 bits of each seed.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    seeds: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> SamplingTensors:
        """Greedy parameters for so many rows."""
        return cls(
            temperatures=torch.zeros(rows, device=device),
            top_ks=torch.zeros(rows, dtype=torch.int64, device=device),
            top_ps=torch.ones(rows, dtype=torch.float64, device=device),
            seeds=torch.zeros(rows, dtype=torch.int64, device=device),
        )

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> SamplingTensors:
        """The parameters of these requests."""
        made = cls.empty(len(params), torch.device("cpu"))
        for row, one in enumerate(params):
            made.set(row, one)
        return cls(
            *(t.to(device) for t in (made.temperatures, made.top_ks, made.top_ps, made.seeds))
        )

    def set(self, row: int, params: SamplingParams) -> None:
        """Write the parameters of one request."""
        self.temperatures[row] = params.temperature
        self.top_ks[row] = min(params.top_k, MAX_TOP_K)
        self.top_ps[row] = params.top_p
        self.seeds[row] = params.seed - (1 << 64) if params.seed >= 1 << 63 else params.seed

    def first(self, rows: int) -> SamplingTensors:
        """The parameters of the first `rows` requests, as views."""
        return SamplingTensors(
            self.temperatures[:rows], self.top_ks[:rows], self.top_ps[:rows], self.seeds[:rows]
        )
