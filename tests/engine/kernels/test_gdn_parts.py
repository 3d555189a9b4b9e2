"""What stands before and after the delta rule: its inputs, and the norm of its outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.gated_norm import naive as norm_naive
from ddtree_engine.ops.gated_norm import vectorized as norm_vectorized
from ddtree_engine.ops.gdn_inputs import naive as inputs_naive
from ddtree_engine.ops.gdn_inputs import vectorized as inputs_vectorized
from tests.engine.trees import ancestor_mask, conv_taps, random_parents

KEY_HEADS, KEY_DIM, VALUE_HEADS = 2, 12, 4
SIZES = {"key_heads": KEY_HEADS, "key_dim": KEY_DIM, "eps": 1e-6}


def projections(nodes: int, value_dim: int) -> tuple[dict[str, Tensor], list[int]]:
    generator = torch.Generator().manual_seed(nodes)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    B, C = 2, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * value_dim
    parents = random_parents(nodes, generator)
    # Slices of one product of all projections.
    fused = randn(B, nodes, C + 2 * VALUE_HEADS)
    x, a, b = fused.split([C, VALUE_HEADS, VALUE_HEADS], dim=-1)
    return {
        "x": x,
        "tail": randn(B, 3, C),
        "taps": conv_taps(parents, 4).expand(B, nodes, 4),
        "weight": randn(C, 4),
        "a": 9 * a,
        "b": b,
        "A_log": randn(VALUE_HEADS),
        "dt_bias": 9 * randn(VALUE_HEADS),
    }, parents


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
@pytest.mark.parametrize(("nodes", "value_dim"), [(1, 12), (9, 12), (9, 20)])
def test_gdn_inputs(nodes: int, value_dim: int, form: str, device: torch.device) -> None:
    from ddtree_engine.ops.gdn_inputs import kernel

    chosen = kernel if form == "kernel" else inputs_vectorized
    tensors, parents = projections(nodes, value_dim)
    kept = torch.empty(tensors["x"].shape, device=device)
    found = chosen.gdn_inputs(**{n: t.to(device) for n, t in tensors.items()}, **SIZES, kept=kept)
    assert torch.equal(kept.cpu(), tensors["x"])
    expected = inputs_naive.gdn_inputs(**tensors, **SIZES)
    for name, got, want in zip(expected._fields, found, expected, strict=True):
        torch.testing.assert_close(got.cpu(), want, atol=2e-5, rtol=1e-5, msg=name)
    # A broken node reaches the convolution of its descendants only.
    tensors["x"][0, -1] = torch.nan
    after = chosen.gdn_inputs(**{n: t.to(device) for n, t in tensors.items()}, **SIZES)
    sound = ~ancestor_mask(parents)[:, -1]
    for got, want in zip(after, found, strict=True):
        assert torch.equal(got[0, sound], want[0, sound])


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
def test_gated_norm(form: str, device: torch.device) -> None:
    from ddtree_engine.ops.gated_norm import kernel

    generator = torch.Generator().manual_seed(0)
    B, N, H, d = 2, 3, 5, 20
    x = torch.randn(B, N, H, d, generator=generator)
    gate = torch.randn(B, N, H * d + 7, generator=generator)[..., : H * d].unflatten(-1, (H, d))
    weight = torch.randn(d, generator=generator)
    expected = norm_naive.gated_norm(x, gate, weight, 1e-6)
    chosen = kernel if form == "kernel" else norm_vectorized
    assert kernel.supports(x, gate)
    found = chosen.gated_norm(x.to(device), gate.to(device), weight.to(device), 1e-6)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)
