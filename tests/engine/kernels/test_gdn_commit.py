"""Replay of accepted paths from the inputs of the convolution."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine.ops.gdn_commit import naive, vectorized

KEY_HEADS, DK, HV, DV, K = 2, 12, 4, 20, 4
SIZES = {"key_heads": KEY_HEADS, "eps": 1e-6}


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
def test_gdn_commit(form: str, device: torch.device) -> None:
    from ddtree_engine.ops.gdn_commit import kernel

    chosen = kernel if form == "kernel" else vectorized
    L, B, N = 2, 3, 9
    C = 2 * KEY_HEADS * DK + HV * DV
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    nodes = torch.tensor([[0, 2, 5, 6, 8], [0, 0, 0, 0, 0], [0, 1, 3, 0, 0]])
    lengths = torch.tensor([5, 0, 3])
    tensors = (
        randn(L, B, N, C),
        randn(L, B, K - 1, C),
        randn(L, C, K),
        -randn(L, B, N, HV).abs(),
        randn(L, B, N, HV).sigmoid(),
        nodes,
        lengths,
    )
    state = randn(L, B, HV, DK, DV)
    want, got = state.clone(), state.clone().to(device)
    naive.gdn_commit(*tensors, want, **SIZES)
    chosen.gdn_commit(*(t.to(device) for t in tensors), got, **SIZES)
    torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-5)
    assert torch.equal(got[:, 1].cpu(), state[:, 1])
    # What lies off the path does not matter, broken or not.
    broken = tensors[0].clone()
    broken[:, 0, [1, 3, 4, 7]] = torch.nan
    again = state.clone().to(device)
    chosen.gdn_commit(*(t.to(device) for t in (broken, *tensors[1:])), again, **SIZES)
    assert torch.equal(again, got)
