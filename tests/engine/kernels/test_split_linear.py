"""A product in parts is the product."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine.ops.split_linear import naive, split_linear, vectorized


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_split_linear(parts: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(parts)
    x = torch.randn(2, 5, 64, generator=generator).bfloat16()
    weight = torch.randn(24, 64, generator=generator).bfloat16()
    want = naive.split_linear(x, weight, parts=parts)
    got = vectorized.split_linear(x.to(device), weight.to(device), parts=parts)
    assert got.shape == (parts, 2, 5, 24)
    assert got.dtype == want.dtype
    close = {"atol": 5e-2, "rtol": 2e-2} if parts == 1 else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(got.cpu(), want, **close)


def test_the_sum_is_the_product_whatever_the_parts(device: torch.device, half: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for outputs, dtype in ((16, half), (64, half), (16, torch.float32)):
        x = torch.randn(1, 3, 64, generator=generator).to(dtype)
        weight = torch.randn(outputs, 64, generator=generator).to(dtype)
        found = split_linear(x.to(device), weight.to(device)).sum(0).cpu()
        expected = (x.double() @ weight.double().T).to(found.dtype)
        torch.testing.assert_close(found, expected, atol=6e-2, rtol=2e-2)
