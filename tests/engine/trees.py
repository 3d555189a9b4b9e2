"""Random trees for tests."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor


def random_parents(nodes: int, generator: torch.Generator) -> list[int]:
    """Parents of a random tree in topological order."""
    return [-1] + [int(torch.randint(0, i, (), generator=generator)) for i in range(1, nodes)]


def ancestor_mask(parents: list[int]) -> Tensor:
    """[N, N] bool, by walking up from each node."""
    N = len(parents)
    mask = torch.zeros(N, N, dtype=torch.bool)
    for i in range(N):
        j = i
        while j >= 0:
            mask[i, j] = True
            j = parents[j]
    return mask


def conv_taps(parents: list[int], kernel: int) -> Tensor:
    """[N, K] rows of the committed inputs followed by the nodes' own, by walking up."""
    taps = []
    for i in range(len(parents)):
        rows, j = [], i
        for _ in range(kernel):
            # Past the root the walk goes on through the committed inputs, newest first.
            rows.append(kernel - 1 + j)
            j = parents[j] if j >= 0 else j - 1
        taps.append(rows[::-1])
    return torch.tensor(taps)


tree_sizes = st.integers(1, 24)
seeds = st.integers(0, 2**32 - 1)
