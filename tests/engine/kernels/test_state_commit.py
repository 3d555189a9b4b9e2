"""The recurrence along a path with PyTorch, against the plain loop."""

from __future__ import annotations

import torch

from ddtree_engine.norm import l2_normalize
from ddtree_engine.ops.state_commit import naive, vectorized

L, B, D, HK, HV, DK, DV = 2, 2, 5, 1, 2, 12, 40


def test_takes_the_path_out_of_the_tree(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    # The states are rows of a larger cache.
    state = randn(L, B + 2, HV, DK, DV)[:, 1 : B + 1]
    tree = [
        l2_normalize(randn(L, B, D, HK, DK)),
        randn(L, B, D, HV, DV),
        -torch.exp(randn(L, B, D, HV)),
        torch.sigmoid(randn(L, B, D, HV)),
    ]
    lengths = torch.tensor([3, 2])
    for nodes in (None, torch.tensor([[0, 2, 4], [0, 3, 0]])):
        expected = state.double()
        naive.state_commit(*(one.double() for one in tree), lengths, expected, nodes)
        found = state.to(device).clone()
        on_device = None if nodes is None else nodes.to(device)
        vectorized.state_commit(
            *(one.to(device) for one in tree), lengths.to(device), found, on_device
        )
        torch.testing.assert_close(found.cpu().double(), expected, atol=1e-5, rtol=1e-5)
