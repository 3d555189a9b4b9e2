"""What an accepted path leaves in the caches of attention and of the convolution: exact copies."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine.ops.conv_commit import naive as conv_naive
from ddtree_engine.ops.conv_commit import vectorized as conv_vectorized
from ddtree_engine.ops.kv_commit import naive as kv_naive
from ddtree_engine.ops.kv_commit import vectorized as kv_vectorized

L, N = 2, 7
NODES = torch.tensor([[0, 3, 5, 6], [0, 2, 0, 0], [0, 0, 0, 0]])
LENGTHS = torch.tensor([4, 2, 0])  # the last request is idle


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
@pytest.mark.parametrize("room", [20, 12])
def test_kv_commit_writes_the_path_and_nothing_else(
    room: int, form: str, device: torch.device
) -> None:
    from ddtree_engine.ops.kv_commit import kernel

    chosen = kernel if form == "kernel" else kv_vectorized
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(L, 3, N, 3, 20, generator=generator) for _ in range(2))
    # The slice of a larger cache in which requests run; one of them ends at its end.
    cache = torch.randn(2, L, 5, room, 3, 20, generator=generator)
    starts = torch.tensor([3, room - 2, room])
    expected = cache.clone()
    kv_naive.kv_commit(keys, values, NODES, LENGTHS, starts, *expected[:, :, 1:4])
    found = cache.clone().to(device)
    tensors = (tensor.to(device) for tensor in (keys, values, NODES, LENGTHS, starts))
    views = found[:, :, 1:4]
    assert kernel.supports(*views)
    chosen.kv_commit(*tensors, *views)
    assert torch.equal(found.cpu(), expected)
    assert (expected != cache).any((3, 4, 5))[:, :, 1:3].all()


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
@pytest.mark.parametrize("taps", [2, 4])
def test_conv_commit_keeps_the_last_inputs(taps: int, form: str, device: torch.device) -> None:
    from ddtree_engine.ops.conv_commit import kernel

    chosen = kernel if form == "kernel" else conv_vectorized
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(L, 3, N, 50, generator=generator)
    tails = torch.randn(L, 5, taps - 1, 50, generator=generator)
    for lengths in (LENGTHS, torch.tensor([1, 1, 4])):
        expected = tails.clone()
        conv_naive.conv_commit(inputs, NODES, lengths, expected[:, 1:4])
        found = tails.clone().to(device)
        chosen.conv_commit(inputs.to(device), NODES.to(device), lengths.to(device), found[:, 1:4])
        assert torch.equal(found.cpu(), expected)
