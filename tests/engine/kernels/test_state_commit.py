"""The commit kernel against the plain recurrence, and what must not change a bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddtree_engine.norm import l2_normalize
from ddtree_engine.ops.state_commit import naive, vectorized

L, B, D, HK, HV, DK, DV = 2, 2, 5, 1, 2, 12, 40


def inputs(device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Keys, values, log decays and strengths of the path, and the states before it."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    # The states are rows of a larger cache.
    states = randn(L, B + 2, HV, DK, DV)[:, 1 : B + 1]
    path = [
        l2_normalize(randn(L, B, D, HK, DK)),
        randn(L, B, D, HV, DV),
        -torch.exp(randn(L, B, D, HV)),
        torch.sigmoid(randn(L, B, D, HV)),
    ]
    return [tensor.to(device) for tensor in path], states.to(device)


def test_replays_the_recurrence(device: torch.device) -> None:
    from ddtree_engine.ops.state_commit import kernel

    path, state = inputs(device)
    lengths = torch.tensor([5, 2], device=device)
    for tensor in path:  # what lies past the end of a path is some other node's
        tensor[:, 1, 2:] = torch.nan
    expected = state.cpu().double()
    naive.state_commit(*(tensor.cpu().double() for tensor in path), lengths.cpu(), expected)
    kernel.state_commit(*path, lengths, state)
    torch.testing.assert_close(state.cpu().double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
def test_takes_the_path_out_of_the_tree(form: str, device: torch.device) -> None:
    from ddtree_engine.ops.state_commit import kernel

    chosen = kernel if form == "kernel" else vectorized
    tree, state = inputs(device)
    nodes = torch.tensor([[0, 2, 4], [0, 3, 0]], device=device)
    lengths = torch.tensor([3, 2], device=device)
    expected = state.cpu().double()
    naive.state_commit(
        *(tensor.cpu().double() for tensor in tree), lengths.cpu(), expected, nodes.cpu()
    )
    chosen.state_commit(*tree, lengths, state, nodes)
    torch.testing.assert_close(state.cpu().double(), expected, atol=1e-5, rtol=1e-5)


def test_one_token_at_a_time_gives_the_same_bits(device: torch.device) -> None:
    from ddtree_engine.ops.state_commit import kernel

    path, whole = inputs(device)
    steps = whole.clone()
    kernel.state_commit(*path, torch.tensor([D, D], device=device), whole)
    one = torch.ones(B, dtype=torch.int64, device=device)
    for t in range(D):
        kernel.state_commit(*(tensor[:, :, t : t + 1] for tensor in path), one, steps)
    assert torch.equal(whole, steps)


def test_a_neighbour_changes_no_bit(device: torch.device) -> None:
    from ddtree_engine.ops.state_commit import kernel

    path, start = inputs(device)
    alone = start[:, :1].clone()
    kernel.state_commit(
        *(tensor[:, :1] for tensor in path), torch.tensor([3], device=device), alone
    )
    for neighbour in (1, 5):
        state = start.clone()
        kernel.state_commit(*path, torch.tensor([3, neighbour], device=device), state)
        assert torch.equal(state[:, :1], alone)
