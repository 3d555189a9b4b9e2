"""What the device knows of the requests: the inputs of a round that no host has to bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ddtree_engine.sampling import SamplingParams, SamplingTensors


class RowState:
    """One entry a cache row, at a fixed address; rounds advance them.

    Attributes:
        lengths: [R] int64, committed tokens.
        anchors: [R] int64, the last known token, not yet committed.
        budgets: [R] int64, nodes of the row's trees besides the root.
        widths: [R] int64, candidates a depth that its trees look at.
        active: [R] int64, 1 where a round may commit, else 0.
        sampling: how it chooses its tokens.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        def zeros() -> Tensor:
            return torch.zeros(rows, dtype=torch.int64, device=device)

        self.lengths, self.anchors, self.active = zeros(), zeros(), zeros()
        self.budgets, self.widths = zeros(), zeros() + 1
        self.sampling = SamplingTensors.empty(rows, device)

    def set(
        self,
        row: int,
        *,
        length: int,
        anchor: int,
        budget: int,
        width: int,
        sampling: SamplingParams,
    ) -> None:
        """Let a request decode from the next round on."""
        self.lengths[row] = length
        self.anchors[row] = anchor
        self.budgets[row] = budget
        self.widths[row] = width
        self.sampling.set(row, sampling)
        self.active[row] = 1

    def clear(self, row: int) -> None:
        """Let no round commit anything to a row."""
        for tensor in (self.active, self.lengths, self.budgets):
            tensor[row] = 0
        self.widths[row] = 1

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        if a != b:
            for tensor in self._tensors():
                kept = tensor[a].clone()
                tensor[a] = tensor[b]
                tensor[b] = kept

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Rounds that run meanwhile do all their work and commit none of it."""
        active = self.active.clone()
        self.active.zero_()
        try:
            yield
        finally:
            self.active.copy_(active)

    def _tensors(self) -> list[Tensor]:
        sampling = self.sampling
        return [
            *(self.lengths, self.anchors, self.active, self.budgets, self.widths),
            *(sampling.temperatures, sampling.top_ks, sampling.top_ps, sampling.seeds),
        ]
