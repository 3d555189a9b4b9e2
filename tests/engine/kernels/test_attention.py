"""Split-KV attention against lists of visible keys: over a tree, and over a drafter's block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.drafter_attention import naive as drafter_naive
from ddtree_engine.ops.tree_attention import naive as tree_naive
from tests.engine.trees import ancestor_mask, random_parents

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def on(device: torch.device, arguments: dict[str, Any]) -> dict[str, Any]:
    return {n: x.to(device) if isinstance(x, Tensor) else x for n, x in arguments.items()}


def tree_inputs(
    nodes: int, *, lengths: tuple[int, ...] = (70, 9), heads: int = 4, d: int = 12
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(nodes)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    B, T, groups = len(lengths), max(lengths), 2
    # A slice of a longer cache, whose rows past the end are whatever an earlier request left.
    k_prefix, v_prefix = randn(B + 1, T + 3, groups, d)[1:, :T], randn(B, T, groups, d)
    for b, length in enumerate(lengths):
        k_prefix[b, length:] = torch.nan
        v_prefix[b, length:] = torch.nan
    return {
        "q": randn(B, nodes, heads, d),
        "k_prefix": k_prefix,
        "v_prefix": v_prefix,
        "lengths": torch.tensor(lengths),
        "k": randn(B, nodes, groups, d),
        "v": randn(B, nodes, groups, d),
        "ancestors": torch.stack(
            [ancestor_mask(random_parents(nodes, generator)) for _ in lengths]
        ),
        "scale": d**-0.5,
    }


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("nodes", [1, 11, 23])
def test_tree_attention_equals_a_list_of_visible_keys(
    nodes: int, pieces: int, device: torch.device
) -> None:
    from ddtree_engine.ops.split_kv import Tiling
    from ddtree_engine.ops.tree_attention import kernel

    arguments = tree_inputs(nodes)
    tiling = Tiling(rows=16, columns=16, pieces=pieces, warps=4, stages=1)
    found = kernel.tree_attention(**on(device, arguments), tiling=tiling)
    torch.testing.assert_close(found.cpu(), tree_naive.tree_attention(**arguments), **CLOSE)


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
def test_an_output_gate(form: str, device: torch.device) -> None:
    from ddtree_engine.ops.tree_attention import kernel, vectorized

    arguments = tree_inputs(5)
    # Half of a wider projection, as models have it.
    gate = torch.randn(2, 5, 4, 24, generator=torch.Generator().manual_seed(0))[..., 12:]
    chosen = kernel if form == "kernel" else vectorized
    found = chosen.tree_attention(**on(device, {**arguments, "gate": gate}))
    expected = tree_naive.tree_attention(**arguments, gate=gate)
    torch.testing.assert_close(found.cpu(), expected, **CLOSE)


@pytest.mark.parametrize("form", ["naive", "vectorized", "kernel"])
def test_a_scaled_output_gate(form: str, device: torch.device) -> None:
    from ddtree_engine.ops.tree_attention import kernel, vectorized

    chosen = {"naive": tree_naive, "vectorized": vectorized, "kernel": kernel}[form]
    arguments = on(device, tree_inputs(5))
    generator = torch.Generator().manual_seed(0)
    gate = torch.randn(2, 5, 4, 24, generator=generator)[..., 12:].to(device)
    factors = torch.randn(2, 5, generator=generator).exp().to(device)
    found = chosen.tree_attention(**arguments, gate=gate, row_scale=factors)
    scaled = gate.cpu() * factors.cpu()[:, :, None, None]
    expected = tree_naive.tree_attention(**on(torch.device("cpu"), arguments), gate=scaled)
    torch.testing.assert_close(found.cpu(), expected, **CLOSE)
    # Of the gate alone, and of its own node's: no other looks at it.
    assert torch.equal(
        chosen.tree_attention(**arguments, row_scale=factors), chosen.tree_attention(**arguments)
    )
    factors[1, 0] = torch.nan
    after = chosen.tree_attention(**arguments, gate=gate, row_scale=factors)
    assert after[1, 0].isnan().all()
    after[1, 0] = found[1, 0]
    assert torch.equal(after, found)


def test_pieces_that_a_short_context_leaves_empty(device: torch.device) -> None:
    from ddtree_engine.ops.split_kv import Tiling
    from ddtree_engine.ops.tree_attention import kernel

    arguments = tree_inputs(5, lengths=(70, 0, 17))
    tiling = Tiling(rows=16, columns=16, pieces=7, warps=4, stages=1)
    found = kernel.tree_attention(**on(device, arguments), tiling=tiling)
    torch.testing.assert_close(found.cpu(), tree_naive.tree_attention(**arguments), **CLOSE)


def test_tilings_fit_the_shared_memory_that_there_is() -> None:
    from ddtree_engine.ops.split_kv import choose_tiling

    for memory in (99 * 1024, 227 * 1024):
        for row_bytes in (128, 256, 512, 1024):
            for rows in (1, 16, 102, 390):
                for context in (64, 40_000):
                    tiling = choose_tiling(
                        rows=rows,
                        row_bytes=row_bytes,
                        context=context,
                        heads=4,
                        memory=memory,
                        processors=132,
                    )
                    blocks = 2 * tiling.stages * tiling.columns
                    assert (tiling.rows + blocks) * row_bytes <= memory
                    assert 1 <= tiling.pieces <= -(-context // tiling.columns)


@pytest.mark.parametrize(
    ("nodes", "context", "tile", "pieces"),
    [
        (1, 1024, 16, 32),
        (17, 2048, 64, 15),
        (17, 32800, 128, 32),
        (33, 8224, 128, 15),
        (64, 32800, 128, 10),
        (65, 2048, 64, 3),
        (65, 8224, 128, 7),
        (129, 2048, 128, 3),
        (129, 8224, 128, 8),
        (129, 32800, 128, 9),
    ],
)
def test_the_tilings_that_were_fastest(nodes: int, context: int, tile: int, pieces: int) -> None:
    """For 24 query and 4 key heads of 256, on an H200."""
    from ddtree_engine.ops.split_kv import choose_tiling

    tiling = choose_tiling(
        rows=6 * nodes,
        row_bytes=512,
        context=context,
        heads=4,
        memory=227 << 10,
        processors=132,
    )
    assert (tiling.rows, tiling.pieces) == (tile, pieces)


@pytest.mark.parametrize(
    ("lengths", "heads", "d"), [((0, 5), 4, 64), ((33,), 12, 128), ((20,), 2, 256)]
)
def test_shapes_of_heads_and_prefixes(
    lengths: tuple[int, ...], heads: int, d: int, device: torch.device
) -> None:
    from ddtree_engine.ops.tree_attention import kernel

    arguments = tree_inputs(3, lengths=lengths, heads=heads, d=d)
    found = kernel.tree_attention(**on(device, arguments))
    torch.testing.assert_close(found.cpu(), tree_naive.tree_attention(**arguments), **CLOSE)


def test_no_prefix_at_all(device: torch.device) -> None:
    from ddtree_engine.ops.tree_attention import kernel

    arguments = tree_inputs(4, lengths=(0,))
    found = kernel.tree_attention(**on(device, arguments))
    torch.testing.assert_close(found.cpu(), tree_naive.tree_attention(**arguments), **CLOSE)


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_node_reaches_its_descendants_only(
    where: str, value: float, device: torch.device
) -> None:
    from ddtree_engine.ops.tree_attention import kernel

    arguments = tree_inputs(17)
    expected = tree_naive.tree_attention(**arguments)
    mask = arguments["ancestors"][0]
    broken = next(j for j in range(1, 17) if mask[:, j].sum() > 2)
    arguments[where] = arguments[where].clone()
    arguments[where][0, broken, :, 3] = value
    found = kernel.tree_attention(**on(device, arguments)).cpu()
    reached = mask[:, broken]
    torch.testing.assert_close(found[0, ~reached], expected[0, ~reached], **CLOSE)
    torch.testing.assert_close(found[1], expected[1], **CLOSE)
    if value == torch.inf and where == "k":
        return  # a score of minus infinity is a weight of zero, as it should be
    assert found[0, broken].isnan().all()
    if where != "q":  # a query is its node's alone
        assert found[0, reached].isnan().all()


def test_half_precision(device: torch.device, half: torch.dtype) -> None:
    from ddtree_engine.ops.tree_attention import kernel

    arguments = tree_inputs(9)
    for name in ("q", "k_prefix", "v_prefix", "k", "v"):
        arguments[name] = arguments[name].to(half)
    single = {
        n: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x
        for n, x in arguments.items()
    }
    found = kernel.tree_attention(**on(device, arguments))
    assert found.dtype == half
    expected = tree_naive.tree_attention(**single)
    torch.testing.assert_close(found.cpu().float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 4, 30])
def test_drafter_attention_follows_its_mask_rules(
    causal: bool, window: int | None, device: torch.device
) -> None:
    from ddtree_engine.ops.drafter_attention import kernel
    from ddtree_engine.ops.split_kv import Tiling

    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    B, T, M, heads, groups, d = 2, 60, 6, 4, 2, 20
    k_context, v_context = randn(B, T, groups, d), randn(B, T, groups, d)
    k_context[1, 37:] = torch.nan
    v_context[1, 37:] = torch.nan
    arguments = {
        "q": randn(B, M, heads, d),
        "k_context": k_context,
        "v_context": v_context,
        "lengths": torch.tensor([60, 37]),
        "k": randn(B, M, groups, d),
        "v": randn(B, M, groups, d),
        "causal": causal,
        "window": window,
        "scale": 0.4,
    }
    tiling = Tiling(rows=16, columns=16, pieces=2, warps=4, stages=1)
    found = kernel.drafter_attention(**on(device, arguments), tiling=tiling)
    expected = drafter_naive.drafter_attention(**arguments)
    torch.testing.assert_close(found.cpu(), expected, **CLOSE)
