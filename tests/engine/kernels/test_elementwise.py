"""What stands between the products of a layer: norms, rotation, activation, gate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.inverse_rms import naive as inverse_naive
from ddtree_engine.ops.inverse_rms import vectorized as inverse_vectorized
from ddtree_engine.ops.qk_norm_rope import naive as rope_naive
from ddtree_engine.ops.qk_norm_rope import vectorized as rope_vectorized
from ddtree_engine.ops.rms_norm import naive as norm_naive
from ddtree_engine.ops.rms_norm import vectorized as norm_vectorized
from ddtree_engine.ops.sigmoid_gate import naive as gate_naive
from ddtree_engine.ops.sigmoid_gate import vectorized as gate_vectorized
from ddtree_engine.ops.silu_mul import naive as silu_naive
from ddtree_engine.ops.silu_mul import vectorized as silu_vectorized

FORMS = pytest.mark.parametrize("form", ["vectorized", "kernel"])
ALL_FORMS = pytest.mark.parametrize("form", ["naive", "vectorized", "kernel"])


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def row_factors() -> Tensor:
    """[2, 3]: one that half precision has no room for, one that makes a norm's eps count."""
    factors = randn(2, 3).exp()
    factors[0, 0], factors[1, 2] = 1000.0, 1e-3
    return factors


@FORMS
@pytest.mark.parametrize("size", [24, 96])
@pytest.mark.parametrize("zero_centered", [False, True])
def test_rms_norm(
    form: str, size: int, zero_centered: bool, device: torch.device, half: torch.dtype
) -> None:
    from ddtree_engine.ops.rms_norm import kernel

    chosen = kernel if form == "kernel" else norm_vectorized
    for dtype, atol in ((torch.float32, 1e-6), (half, 4e-3)):
        x, weight = 3 * randn(2, 3, size).to(dtype), randn(size).to(dtype)
        want = norm_naive.rms_norm(x, weight, 1e-6, zero_centered=zero_centered)
        got = chosen.rms_norm(x.to(device), weight.to(device), 1e-6, zero_centered=zero_centered)
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu(), want, atol=atol, rtol=atol)


@pytest.mark.parametrize("size", [24, 96])
def test_inverse_rms(size: int, device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.inverse_rms import kernel

    for dtype in (torch.float32, half):
        x = (3 * randn(2, 3, size)).to(dtype)
        x[0, 0] = 0.0  # nothing but eps
        want = inverse_naive.inverse_rms(x, 1e-6)
        assert want.dtype == torch.float32
        torch.testing.assert_close(inverse_vectorized.inverse_rms(x, 1e-6), want)
        got = torch.full((2, 3), torch.nan, device=device)
        kernel.inverse_rms_into(got, x.to(device), 1e-6)
        torch.testing.assert_close(got.cpu(), want)


@FORMS
def test_silu_mul(form: str, device: torch.device) -> None:
    from ddtree_engine.ops.silu_mul import kernel

    chosen = kernel if form == "kernel" else silu_vectorized
    x = 9 * randn(2, 3, 2 * 37)
    x[0, 0, 0] = -2000
    got = chosen.silu_mul(x.to(device)).cpu()
    torch.testing.assert_close(got, silu_naive.silu_mul(x), atol=1e-6, rtol=1e-5)


@ALL_FORMS
def test_silu_mul_of_scaled_rows(form: str, device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.silu_mul import kernel

    chosen = {"naive": silu_naive, "vectorized": silu_vectorized, "kernel": kernel}[form]
    factors = row_factors()
    for dtype, rtol in ((torch.float32, 1e-5), (half, 1e-2)):
        x = randn(2, 3, 2 * 37).to(dtype)
        # Scaled, the gates of this row are past what float16 can hold; the results are not.
        x[0, 0, :37], x[0, 0, 37:] = 100.0, 1e-4
        want = silu_naive.silu_mul(x.float() * factors[:, :, None]).to(dtype)
        assert want.isfinite().all()
        got = chosen.silu_mul(x.to(device), row_scale=factors.to(device)).cpu()
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, atol=1e-6, rtol=rtol)


@FORMS
def test_sigmoid_gate(form: str, device: torch.device) -> None:
    from ddtree_engine.ops.sigmoid_gate import kernel

    chosen = kernel if form == "kernel" else gate_vectorized
    x, gate = randn(2, 3, 4, 12), randn(2, 3, 4, 24)[..., 12:]
    assert not gate.is_contiguous()
    got = chosen.sigmoid_gate(x.to(device), gate.to(device)).cpu()
    torch.testing.assert_close(got, gate_naive.sigmoid_gate(x, gate), atol=1e-6, rtol=1e-5)


@ALL_FORMS
def test_sigmoid_gate_of_scaled_rows(form: str, device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.sigmoid_gate import kernel

    chosen = {"naive": gate_naive, "vectorized": gate_vectorized, "kernel": kernel}[form]
    factors = row_factors()
    for dtype, rtol in ((torch.float32, 1e-5), (half, 1e-2)):
        x, gate = randn(2, 3, 4, 12).to(dtype), randn(2, 3, 4, 24).to(dtype)[..., 12:]
        scaled = gate.float() * factors[:, :, None, None]
        want = gate_naive.sigmoid_gate(x.float(), scaled).to(dtype)
        got = chosen.sigmoid_gate(x.to(device), gate.to(device), row_scale=factors.to(device))
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu(), want, atol=1e-6, rtol=rtol)


@FORMS
@pytest.mark.parametrize("rotated", [4, 12])
@pytest.mark.parametrize("query_heads", [0, 4])
@pytest.mark.parametrize("zero_centered", [False, True])
def test_qk_norm_rope(
    form: str, rotated: int, query_heads: int, zero_centered: bool, device: torch.device
) -> None:
    from ddtree_engine.ops.qk_norm_rope import kernel

    chosen = kernel if form == "kernel" else rope_vectorized
    d = 12
    # Slices of one product, the queries with their gates between them.
    fused = randn(2, 3, query_heads * 2 * d + 2 * 2 * d)
    q = fused[..., : query_heads * 2 * d].unflatten(-1, (query_heads, 2 * d))[..., :d]
    k = fused[..., query_heads * 2 * d :].unflatten(-1, (4, d))[:, :, :2]
    angles = randn(2, 3, 1, rotated // 2).repeat(1, 1, 1, 2)
    v = fused[..., query_heads * 2 * d :].unflatten(-1, (4, d))[:, :, 2:]
    tensors = (q, k, v, randn(d), randn(d, 1)[:, 0], angles.cos(), angles.sin())
    got = chosen.qk_norm_rope(*(t.to(device) for t in tensors), 1e-6, zero_centered=zero_centered)
    want = rope_naive.qk_norm_rope(*tensors, 1e-6, zero_centered=zero_centered)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=1e-5, rtol=1e-5)


@ALL_FORMS
def test_keys_of_several_norms(form: str, device: torch.device) -> None:
    """Heads of several layers side by side are those of each layer."""
    from ddtree_engine.ops.qk_norm_rope import kernel

    chosen = {"naive": rope_naive, "vectorized": rope_vectorized, "kernel": kernel}[form]
    d, k, v, weights = 12, randn(2, 3, 6, 12), randn(2, 3, 6, 12) + 1, randn(3, 12)
    angles = randn(2, 3, 1, 2).repeat(1, 1, 1, 2)
    at = device if form == "kernel" else torch.device("cpu")
    turns = angles.cos().to(at), angles.sin().to(at)

    def run(k: Tensor, v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        tensors = (k[:, :, :0], k, v, weight.new_empty(d), weight)
        tensors = tuple(one.to(at) for one in tensors)
        _, keys, values = chosen.qk_norm_rope(*tensors, *turns, 1e-6, zero_centered=False)
        return keys.cpu(), values.cpu()

    together = run(k, v, weights)
    for layer, weight in enumerate(weights):
        some = slice(2 * layer, 2 * layer + 2)
        for whole, part in zip(together, run(k[:, :, some], v[:, :, some], weight), strict=True):
            torch.testing.assert_close(whole[:, :, some], part)


@ALL_FORMS
@pytest.mark.parametrize("query_heads", [0, 4])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_qk_norm_rope_of_scaled_rows(
    form: str, query_heads: int, broken: float, device: torch.device, half: torch.dtype
) -> None:
    from ddtree_engine.ops.qk_norm_rope import kernel

    chosen = {"naive": rope_naive, "vectorized": rope_vectorized, "kernel": kernel}[form]
    d, factors = 12, row_factors()
    angles = randn(2, 3, 1, 2).repeat(1, 1, 1, 2)
    weights = (randn(d), randn(d, 1)[:, 0], angles.cos(), angles.sin())
    for dtype, atol in ((torch.float32, 1e-5), (half, 3e-2)):
        # Scaled, some queries and keys are past what float16 can hold; their norms are not.
        fused = randn(2, 3, query_heads + 4, d).to(dtype)
        fused[:, :, :-2] *= 100
        q, k, v = fused.split([query_heads, 2, 2], dim=2)
        wide = (t.float() * factors[:, :, None, None] for t in (q, k, v))
        wants = rope_naive.qk_norm_rope(*wide, *weights, 1e-6, zero_centered=True)
        tensors = [t.to(device) for t in (q, k, v, *weights)]
        gots = chosen.qk_norm_rope(*tensors, 1e-6, zero_centered=True, row_scale=factors.to(device))
        for got, want in zip(gots, wants, strict=True):
            assert got.dtype == dtype
            assert want.isfinite().all()
            torch.testing.assert_close(got.cpu().float(), want, atol=atol, rtol=atol)
        # A factor that is not finite is of its own row's alone.
        bad = factors.clone()
        bad[1, 1] = broken
        after = chosen.qk_norm_rope(*tensors, 1e-6, zero_centered=True, row_scale=bad.to(device))
        for one, other in zip(after, gots, strict=True):
            assert not one[1, 1].isfinite().any()
            one[1, 1] = other[1, 1]
            assert torch.equal(one, other)
