"""The chunked gated delta rule against the token-by-token recurrence."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ddtree_engine.ops import device
from ddtree_engine.ops.chunk_gdn import chunk_gdn, library
from ddtree_engine.ops.chunk_gdn.naive import chunk_gdn as naive
from ddtree_engine.ops.chunk_gdn.vectorized import unit_lower_inverse

ROOT = Path(__file__).parents[2]


def inputs(B: int, T: int, HK: int, HV: int, dk: int, dv: int, *, decay: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(B * 1000 + T * 10 + HV)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q = functional.normalize(normal(B, T, HK, dk), dim=-1) * dk**-0.5
    k = functional.normalize(normal(B, T, HK, dk), dim=-1)
    g = -decay * functional.softplus(normal(B, T, HV))
    return [q, k, normal(B, T, HV, dv), g, normal(B, T, HV).sigmoid(), normal(B, HV, dk, dv)]


CASES = [
    *itertools.product([(1, 1), (2, 5), (1, 64), (2, 70)], [(1, 1), (2, 4)], [4, 16, 64], [0.1]),
    ((1, 33), (1, 2), 16, 30.0),
    ((1, 40), (2, 6), 8, 0.0),
]


@pytest.mark.parametrize(("shape", "heads", "chunk", "decay"), CASES)
@pytest.mark.parametrize("with_state", [False, True])
def test_matches_the_recurrence(
    shape: tuple[int, int], heads: tuple[int, int], chunk: int, decay: float, with_state: bool
) -> None:
    *tensors, state = inputs(*shape, *heads, dk=6, dv=5, decay=decay)
    initial = state if with_state else None
    out, final = chunk_gdn(*tensors, initial, chunk_size=chunk)
    expected, expected_final = naive(*tensors, initial)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(final, expected_final, atol=1e-9, rtol=0)


def test_gradients_match_autograd_through_the_recurrence() -> None:
    tensors = [x.requires_grad_() for x in inputs(2, 21, 2, 4, 4, 3, decay=0.3)]
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(2, 21, 4, 3, generator=generator, dtype=torch.float64)
    state_weights = torch.randn(2, 4, 4, 3, generator=generator, dtype=torch.float64)
    gradients = []
    for op in (chunk_gdn, naive):
        out, final = op(*tensors, chunk_size=8)
        loss = (out * weights).sum() + (final * state_weights).sum()
        gradients.append(torch.autograd.grad(loss, tensors))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-9, rtol=0)


def test_strong_decay_neither_overflows_nor_loses_the_gradient() -> None:
    tensors = [x.float().requires_grad_() for x in inputs(1, 64, 1, 1, 4, 4, decay=500.0)]
    out, final = chunk_gdn(*tensors)
    (out.sum() + final.sum()).backward()
    assert torch.isfinite(out).all()
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in tensors)


def test_equal_keys_stay_accurate_in_single_precision() -> None:
    q, k, v, g, _, _ = inputs(1, 64, 1, 1, 8, 8, decay=0.0)
    k = k[:, :1].expand_as(k).contiguous()
    beta = torch.ones_like(g)
    out, _ = chunk_gdn(*(x.float() for x in (q, k, v, g, beta)))
    expected, _ = naive(q, k, v, g, beta)
    torch.testing.assert_close(out.double(), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("side", [4, 8, 16, 64])
def test_inverse_of_unit_lower_triangle(side: int) -> None:
    generator = torch.Generator().manual_seed(side)
    A = torch.randn(2, 3, side, side, generator=generator, dtype=torch.float64).tril(-1) * 0.3
    product = unit_lower_inverse(A) @ (torch.eye(side, dtype=torch.float64) + A)
    torch.testing.assert_close(product, torch.eye(side).double().expand_as(A), atol=1e-9, rtol=0)


def test_half_precision_inputs_are_computed_in_single() -> None:
    tensors = [x.to(torch.bfloat16) for x in inputs(1, 20, 1, 2, 4, 4, decay=0.1)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, final = chunk_gdn(*tensors)
    expected, _ = naive(*(x.double() for x in tensors))
    assert out.dtype == final.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("heads", "chunk"), [((2, 3), 64), ((1, 1), 48), ((1, 1), 2)])
def test_refuses_what_it_cannot_do(heads: tuple[int, int], chunk: int) -> None:
    tensors = inputs(1, 3, *heads, dk=2, dv=2, decay=0.1)
    with pytest.raises(ValueError, match=r"multiple|power of two"):
        chunk_gdn(*tensors, chunk_size=chunk)


@pytest.fixture
def fresh() -> Iterator[None]:
    """The library is looked for anew, before the test and after it."""
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def stand_in(monkeypatch: pytest.MonkeyPatch, version: str, triton: str = "3.6.0") -> None:
    """An installed library of a version; in place of its kernels, the recurrence."""

    def kernels(
        *tensors: Tensor, scale: float, initial_state: Tensor, output_final_state: bool
    ) -> tuple[Tensor, Tensor]:
        assert scale == 1.0
        assert output_final_state
        out, state = naive(*tensors, initial_state)
        return out.to(tensors[2].dtype), state

    modules = {
        "triton": SimpleNamespace(__version__=triton),
        "fla.ops.gated_delta_rule": SimpleNamespace(chunk_gated_delta_rule=kernels),
    }
    monkeypatch.setattr(library, "version", lambda name: {"fla-core": version}[name])
    monkeypatch.setattr(library, "import_module", modules.__getitem__)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `device.on_gpu` finds it there."""
    monkeypatch.setattr(device, "on_gpu", lambda *_: True)


def half(dim: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    q, k, v, g, beta, state = inputs(1, 5, 1, 2, dim, 64, decay=0.1)
    return [q.to(dtype), k.to(dtype), v.to(dtype), g.float(), beta.float(), state.float()]


@pytest.mark.parametrize(
    ("dim", "dtype", "gradient", "gpu", "used"),
    [
        (64, torch.bfloat16, False, True, True),
        (64, torch.float16, False, True, True),
        (64, torch.bfloat16, False, False, False),
        (64, torch.float32, False, True, False),
        (64, torch.float64, False, True, False),
        (64, torch.bfloat16, True, True, False),
        (48, torch.bfloat16, False, True, False),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_the_library_runs_where_it_can(
    monkeypatch: pytest.MonkeyPatch,
    dim: int,
    dtype: torch.dtype,
    gradient: bool,
    gpu: bool,
    used: bool,
) -> None:
    stand_in(monkeypatch, "0.6.0")
    if gpu:
        on_a_gpu(monkeypatch)
    tensors = half(dim, dtype)
    tensors[2].requires_grad_(gradient)
    out, state = chunk_gdn(*tensors)
    # It alone gives outputs in half precision.
    assert (out.dtype == dtype and dtype.itemsize == 2) == used
    expected, expected_state = naive(*tensors)
    torch.testing.assert_close(out.float(), expected.float(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(state, expected_state, atol=1e-4, rtol=1e-4, check_dtype=False)
    assert out.requires_grad == gradient


@pytest.mark.parametrize(
    ("version", "triton", "said"),
    [
        ("0.5.9", "3.6.0", "fla-core 0.5.9 with Triton 3.6.0 is not known to work"),
        ("0.7.0.dev1", "3.6.0", "fla-core 0.7.0.dev1"),
        ("1.0", "3.6.0", "fla-core 1.0"),
        ("0.6.1", "3.2.0", "with Triton 3.2.0"),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_versions_that_are_not_known_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
    triton: str,
    said: str,
) -> None:
    stand_in(monkeypatch, version, triton)
    on_a_gpu(monkeypatch)
    out, _ = chunk_gdn(*half(64))
    assert out.dtype == torch.float32
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert said in caplog.text
    chunk_gdn(*half(64))
    assert len(caplog.records) == 1, "once is enough"


@pytest.mark.parametrize("error", [ImportError("No module named 'fla'"), AttributeError("tl.x")])
@pytest.mark.usefixtures("fresh")
def test_a_library_that_does_not_import_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(_: str) -> NoReturn:
        raise error

    stand_in(monkeypatch, "0.6.0")
    monkeypatch.setattr(library, "import_module", fail)
    on_a_gpu(monkeypatch)
    tensors = half(64)
    out, state = chunk_gdn(*tensors)
    expected, expected_state = naive(*tensors)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(state, expected_state, atol=1e-4, rtol=0)
    assert str(error) in caplog.text
    assert "ddtree-engine[fla]" in caplog.text


def test_the_extra_asks_for_the_versions_that_are_known() -> None:
    project = tomllib.loads((ROOT / "engine" / "pyproject.toml").read_text())["project"]
    first, end = (".".join(map(str, numbers)) for numbers in library.VERSIONS)
    assert project["optional-dependencies"]["fla"] == [f"fla-core>={first},<{end}"]
