"""Products of few rows: every way to cut them."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine.ops.few_rows_linear import naive, vectorized


@pytest.mark.parametrize("rows", [1, 5, 17, 33])
@pytest.mark.parametrize("parts", [1, 3])
def test_few_rows_linear(rows: int, parts: int, device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.few_rows_linear import kernel

    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(1, rows, 192, generator=generator).to(half)
    # A slice of a fused weight, its rows no multiple of a tile.
    weight = torch.randn(150, 192, generator=generator).to(half)[10:]
    want = naive.few_rows_linear(x, weight)
    torch.testing.assert_close(vectorized.few_rows_linear(x, weight), want, atol=2e-2, rtol=2e-2)
    for outputs in (64, 128):
        tiling = kernel.Tiling(outputs, 3, parts)
        for _ in range(2):  # the counters are as before
            got = kernel.few_rows_linear(x.to(device), weight.to(device), tiling=tiling)
            torch.testing.assert_close(got.cpu(), want, atol=2e-2, rtol=2e-2)


def test_a_row_does_not_depend_on_its_neighbours(device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.few_rows_linear import kernel

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 16, 128, generator=generator).to(half).to(device)
    weight = torch.randn(70, 128, generator=generator).to(half).to(device)
    tiling = kernel.Tiling(64, 2, 2)
    together = kernel.few_rows_linear(x, weight, tiling=tiling)
    alone = kernel.few_rows_linear(x[:, 3:4].contiguous(), weight, tiling=tiling)
    assert torch.equal(together[:, 3:4], alone)
