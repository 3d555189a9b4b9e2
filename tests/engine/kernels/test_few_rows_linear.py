"""Products of few rows: every way to cut them."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine.ops.few_rows_linear import (
    choose_groups,
    few_rows_linear_into,
    few_rows_linear_onto,
    naive,
    vectorized,
)


@pytest.mark.parametrize("rows", [1, 5, 17, 33, 65])
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


@pytest.mark.parametrize("rows", [5, 66])
def test_columns_of_a_wider_tensor(rows: int, device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.few_rows_linear import kernel

    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(1, rows, 128, generator=generator).to(half).to(device)
    weight = torch.randn(70, 128, generator=generator).to(half).to(device)
    wide = torch.full((1, rows, 90), 7.0, dtype=half, device=device)
    kernel.few_rows_linear(x, weight, out=wide[0, :, 9:79], tiling=kernel.Tiling(64, 2, 1))
    want = (x.double() @ weight.double().T).to(half)
    torch.testing.assert_close(wide[..., 9:79], want, atol=2e-2, rtol=2e-2)
    assert bool((wide[..., :9] == 7.0).all())
    assert bool((wide[..., 79:] == 7.0).all())
    into = torch.full_like(wide, 7.0)
    few_rows_linear_into(into[..., 9:79], x, weight)
    torch.testing.assert_close(into, wide, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("groups", [1, 4])
def test_a_batch_of_groups_of_outputs(groups: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 32, generator=generator).to(device)
    weight = torch.randn(24, 32, generator=generator).to(device)
    stream = torch.randn(2, 3, 24, generator=generator).to(device)
    product = naive.few_rows_linear(x.cpu(), weight.cpu())
    found = vectorized.few_rows_linear(x, weight, groups=groups)
    torch.testing.assert_close(found.cpu(), product)
    want = stream.cpu() + product
    vectorized.few_rows_linear_onto(stream, x, weight, groups=groups)
    torch.testing.assert_close(stream.cpu(), want)


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (17, 1), (66, 1), (1, 3), (17, 3)])
def test_a_product_onto_a_stream(
    rows: int, parts: int, device: torch.device, half: torch.dtype
) -> None:
    """It is rounded once, and counters and stream are right when it is done again."""
    from ddtree_engine.ops.few_rows_linear import kernel

    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(1, rows, 192, generator=generator).to(half)
    weight = torch.randn(140, 192, generator=generator).to(half)
    stream = torch.randn(rows, 140, generator=generator).to(half)
    found = stream.to(device)
    tiling = kernel.Tiling(64, 3, parts)
    for _ in range(2):
        want = (stream.double() + x[0].double() @ weight.double().T).to(half)
        kernel.few_rows_linear(x.to(device), weight.to(device), out=found, onto=True, tiling=tiling)
        torch.testing.assert_close(found.cpu(), want, atol=8e-3, rtol=8e-3)  # a last bit
        stream = found.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_onto_a_stream_whatever_the_device(dtype: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 64, generator=generator).to(device, dtype)
    weight = torch.randn(16, 64, generator=generator).to(device, dtype)
    stream = torch.randn(2, 9, 16, generator=generator).to(device, dtype)
    want = stream.double() + x.double() @ weight.double().T
    few_rows_linear_onto(stream, x, weight)
    torch.testing.assert_close(stream, want.to(dtype), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_a_stream_with_gaps_is_refused(rows: int, device: torch.device, half: torch.dtype) -> None:
    """Nothing is added to a copy of it that nobody looks at."""
    stream = torch.zeros(2, 1 + rows, 8192, dtype=half, device=device)[:, 1:]
    x, weight = torch.ones(2, rows, 64), torch.ones(8192, 64)
    with pytest.raises(RuntimeError, match="view"):
        few_rows_linear_onto(stream, x.to(stream), weight.to(stream))


def test_how_many_products_cublas_does_the_work_in() -> None:
    """The weights of Qwen3.6-27B, as measured on an H200."""
    gate_up, down, out = (34816, 5120), (5120, 17408), (5120, 6144)
    assert [choose_groups(rows, *down) for rows in (1, 8, 65, 100, 128, 129)] == [1, 2, 2, 1, 2, 1]
    assert [choose_groups(rows, *gate_up) for rows in (65, 128, 129, 160)] == [1, 1, 4, 1]
    assert {choose_groups(rows, *out) for rows in range(1, 200)} == {1}
    assert choose_groups(65, 24, 17408) == 1


def test_what_runs_beside_another_kernel_leaves_it_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddtree_engine.ops.few_rows_linear import kernel

    for memory, fits in ((227 << 10, True), (99 << 10, False)):
        monkeypatch.setattr(kernel, "shared_memory", lambda device, memory=memory: memory)
        for rows in (1, 8, 16, 33, 65, 66, 129):
            plan = kernel.plan_beside(torch.empty(1, rows, 128))
            assert (plan is not None) == (fits and 8 <= rows <= 65)
            if plan is not None:
                block = 2 * kernel.COLUMNS * (plan.outputs + sum(kernel.split_rows(rows)))
                assert plan.parts == 1
                assert plan.stages * block <= memory - (72 << 10)


def test_where_the_kernel_was_faster() -> None:
    """The weights of Qwen3.6-27B, as measured on an H200."""
    from ddtree_engine.ops.few_rows_linear import kernel

    def pays(rows: int, outputs: int, inputs: int) -> bool:
        x = torch.empty(1, rows, inputs, dtype=torch.bfloat16, device="meta")
        weight = torch.empty(outputs, inputs, dtype=torch.bfloat16, device="meta")
        return kernel.pays(x, weight)

    gate_up, down, qkv, out = (34816, 5120), (5120, 17408), (14336, 5120), (5120, 6144)
    assert [pays(rows, *gate_up) for rows in (1, 17, 64, 65)] == [True, True, True, False]
    assert [pays(rows, *down) for rows in (1, 17, 64)] == [True, False, False]
    assert [pays(rows, *qkv) for rows in (1, 17, 33)] == [True, True, False]
    assert not any(pays(rows, *out) for rows in (1, 17, 64))
