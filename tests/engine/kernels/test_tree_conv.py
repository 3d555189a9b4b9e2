"""The convolution kernel against one node, one channel, one tap at a time."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine.ops.tree_conv import naive
from tests.engine.trees import ancestor_mask, conv_taps, random_parents


@pytest.mark.parametrize(("nodes", "channels", "taps"), [(1, 3, 4), (7, 40, 4), (9, 300, 2)])
def test_taps_come_from_ancestors(
    nodes: int, channels: int, taps: int, device: torch.device
) -> None:
    from ddtree_engine.ops.tree_conv import kernel

    generator = torch.Generator().manual_seed(nodes)
    B = 2
    parents = [random_parents(nodes, generator) for _ in range(B)]
    x = torch.randn(B, nodes, channels, generator=generator)
    tail = torch.randn(B, taps - 1, channels, generator=generator)
    weight = torch.randn(channels, 1, taps, generator=generator)[:, 0]
    rows = torch.stack([conv_taps(p, taps) for p in parents])
    expected = naive.tree_conv(x, tail, rows, weight)
    # Rows of a wider matrix, as one product of several projections leaves them.
    wide = torch.full((B, nodes, channels + 5), torch.nan)
    wide[..., :channels] = x
    x = wide.to(device)[..., :channels]
    found = kernel.tree_conv(x, tail.to(device), rows.to(device), weight.to(device))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)
    # What reaches the last node is its own path and nothing else.
    outside = ~ancestor_mask(parents[0])[-1]
    x[0, outside.to(device)] = torch.nan
    found = kernel.tree_conv(x, tail.to(device), rows.to(device), weight.to(device))
    torch.testing.assert_close(found[0, -1].cpu(), expected[0, -1], atol=1e-5, rtol=1e-5)


def test_half_precision_rounds_once(device: torch.device) -> None:
    from ddtree_engine.ops.tree_conv import kernel

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 64, generator=generator).bfloat16()
    tail = torch.randn(1, 3, 64, generator=generator).bfloat16()
    weight = torch.randn(64, 4, generator=generator).bfloat16()
    rows = conv_taps(random_parents(5, generator), 4)[None]
    found = kernel.tree_conv(*(t.to(device) for t in (x, tail, rows, weight)))
    expected = naive.tree_conv(x.double(), tail.double(), rows, weight.double())
    assert found.dtype == torch.bfloat16
    # The interpreter cuts the last bits off where a GPU rounds.
    torch.testing.assert_close(found.cpu().double(), expected, atol=1e-6, rtol=2**-7)
