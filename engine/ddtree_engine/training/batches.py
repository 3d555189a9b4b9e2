"""Which tokens a training step sees: a pure function of the seed and the step.

Nothing about the order of the data has to be saved: a run that is resumed at step ``s`` sees what
the uninterrupted run would have seen.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Windows:
    """Windows of ``length`` tokens from one long stream, each epoch in another order and phase.

    Args:
        tokens: ``[N]`` the stream, on the device that trains.
        batch: windows a step.
        length: tokens a window.
        seed: seed of the order.
    """

    def __init__(self, tokens: Tensor, batch: int, length: int, seed: int) -> None:
        self.tokens = tokens
        self.batch = batch
        self.length = length
        self.seed = seed
        # One window fewer than fit leaves room for a random phase.
        self.per_epoch = (tokens.numel() - 1) // length - 1
        if self.per_epoch < batch:
            raise ValueError(
                f"{tokens.numel()} tokens are fewer than {batch + 2} windows of {length}"
            )
        self._order: tuple[int, Tensor] | None = None
        self._span = torch.arange(length, device=tokens.device)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the stream."""
        return self.per_epoch // self.batch

    def at(self, step: int) -> Tensor:
        """Returns the windows of ``step``, ``[batch, length]`` int64."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._starts(epoch).to(self.tokens.device))
        starts = self._order[1][index * self.batch : (index + 1) * self.batch]
        return self.tokens[starts[:, None] + self._span].long()

    def _starts(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        phase = int(torch.randint(self.length, (1,), generator=generator))
        return torch.randperm(self.per_epoch, generator=generator) * self.length + phase


def step_seed(seed: int, step: int) -> int:
    """Seed of everything that is drawn at random within one step."""
    return seed * 1_000_003 + step
