"""What stands before and after the delta rule: its inputs, and the norm of its outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.conv_commit import naive as commit_naive
from ddtree_engine.ops.gated_norm import naive as norm_naive
from ddtree_engine.ops.gated_norm import vectorized as norm_vectorized
from ddtree_engine.ops.gdn_inputs import naive as inputs_naive
from ddtree_engine.ops.gdn_inputs import vectorized as inputs_vectorized
from tests.engine.trees import ancestor_mask, conv_taps, random_parents

KEY_HEADS, KEY_DIM, VALUE_HEADS = 2, 12, 4
FORMS = ["naive", "vectorized", "kernel"]
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


def test_committed_inputs_of_another_dtype_are_left_to_pytorch() -> None:
    """One load takes a row from either, so both have to be of one dtype."""
    from ddtree_engine.ops.gdn_inputs import kernel as inputs_kernel
    from ddtree_engine.ops.tree_conv import kernel as conv_kernel

    tensors, _ = projections(9, 12)
    x, tail, a, b = (tensors[name] for name in ("x", "tail", "a", "b"))
    for dtype, takes in ((torch.float32, True), (torch.float16, False)):
        assert inputs_kernel.supports(x, tail.to(dtype), a, b, None) == takes
        assert conv_kernel.supports(x, tail.to(dtype)) == takes


def scaled_projections(
    nodes: int, dtype: torch.dtype
) -> tuple[dict[str, Tensor], Tensor, list[int]]:
    tensors, parents = projections(nodes, 20)
    factors = torch.randn(2, nodes, generator=torch.Generator().manual_seed(1)).exp()
    return {n: t.to(dtype) if n != "taps" else t for n, t in tensors.items()}, factors, parents


@pytest.mark.parametrize("form", FORMS)
def test_gdn_inputs_of_scaled_rows(form: str, device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.gdn_inputs import kernel

    chosen = {"naive": inputs_naive, "vectorized": inputs_vectorized, "kernel": kernel}[form]
    for dtype in (torch.float32, half):
        tensors, factors, _ = scaled_projections(9, dtype)
        factor = factors[:, :, None]
        kept = torch.empty_like(tensors["x"], device=device)
        on_device = {n: t.to(device) for n, t in tensors.items()}
        found = chosen.gdn_inputs(**on_device, **SIZES, kept=kept, row_scale=factors.to(device))
        x = (tensors["x"].float() * factor).to(dtype)
        assert torch.equal(kept.cpu(), x)
        scaled = {"x": x, "a": tensors["a"].float() * factor, "b": tensors["b"].float() * factor}
        expected = inputs_naive.gdn_inputs(**{**tensors, **scaled}, **SIZES)
        for name, got, want in zip(expected._fields, found, expected, strict=True):
            assert got.dtype == want.dtype
            # The decays and the strengths are float32 whatever the projections are.
            near = max(2e-5, 16 * torch.finfo(got.dtype).eps)
            torch.testing.assert_close(got.cpu(), want, atol=near, rtol=near / 2, msg=name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_children_see_the_same_before_and_after_a_scaled_root_is_committed(
    form: str, dtype: torch.dtype, device: torch.device
) -> None:
    from ddtree_engine.ops.gdn_inputs import kernel

    chosen = {"naive": inputs_naive, "vectorized": inputs_vectorized, "kernel": kernel}[form]
    tensors, factors, parents = scaled_projections(9, dtype)
    kept = torch.empty_like(tensors["x"], device=device)

    def run(row_scale: Tensor, kept: Tensor | None = None) -> list[Tensor]:
        on_device = {n: t.to(device) for n, t in tensors.items()}
        scale = row_scale.to(device)
        return [*chosen.gdn_inputs(**on_device, **SIZES, kept=kept, row_scale=scale)]

    before = run(factors, kept)
    root, lengths = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
    commit_naive.conv_commit(kept.cpu()[None], root, lengths, tensors["tail"][None])
    # The root is the newest row of the tail, and what was in its place is nobody's ancestor.
    taps = tensors["taps"]
    tensors["taps"] = torch.where(taps > 3, taps, taps - 1).clamp(min=0)
    tensors["x"][:, 0] = torch.nan
    factors[:, 0] = torch.nan
    assert parents[1:].count(0) > 1
    for name, got, want in zip(inputs_naive.GdnInputs._fields, run(factors), before, strict=True):
        assert torch.equal(got[:, 1:], want[:, 1:]), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_factor_that_is_not_finite_reaches_descendants_only(
    form: str, value: float, device: torch.device
) -> None:
    from ddtree_engine.ops.gdn_inputs import kernel

    chosen = {"naive": inputs_naive, "vectorized": inputs_vectorized, "kernel": kernel}[form]
    tensors, factors, parents = scaled_projections(9, torch.float32)
    on_device = {n: t.to(device) for n, t in tensors.items()}
    sound = chosen.gdn_inputs(**on_device, **SIZES, row_scale=factors.to(device))
    broken = max(set(parents[1:]) - {0})
    factors[0, broken] = value
    found = chosen.gdn_inputs(**on_device, **SIZES, row_scale=factors.to(device))
    reached = ancestor_mask(parents)[:, broken]
    assert 1 < reached.sum() < 9
    alone = torch.arange(9) == broken
    for name, got, want in zip(found._fields, found, sound, strict=True):
        others = ~reached if name in "qkv" else ~alone
        assert torch.equal(got[0, others], want[0, others]), name
        assert torch.equal(got[1], want[1]), name
    assert found.k[0, broken].isnan().any()


@pytest.mark.parametrize("form", FORMS)
def test_gated_norm_of_scaled_gates(form: str, device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.gated_norm import kernel

    chosen = {"naive": norm_naive, "vectorized": norm_vectorized, "kernel": kernel}[form]
    generator = torch.Generator().manual_seed(0)
    B, N, H, d = 2, 3, 5, 20
    x = torch.randn(B, N, H, d, generator=generator)
    gate = torch.randn(B, N, H, d, generator=generator)
    weight = torch.randn(d, generator=generator)
    factors = torch.randn(B, N, generator=generator).exp()
    for dtype, rtol in ((torch.float32, 1e-5), (half, 1e-2)):
        gate, scaled = gate.to(dtype), gate.to(dtype).float() * factors[:, :, None, None]
        expected = norm_naive.gated_norm(x.to(dtype), scaled, weight, 1e-6).to(dtype)
        tensors = [t.to(device) for t in (x.to(dtype), gate, weight)]
        found = chosen.gated_norm(*tensors, 1e-6, row_scale=factors.to(device))
        assert found.dtype == dtype
        torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=rtol)
    factors[1, 1] = torch.inf
    after = chosen.gated_norm(*tensors, 1e-6, row_scale=factors.to(device))
    after[1, 1] = found[1, 1]
    assert torch.equal(after, found)


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
