"""The triangular solve of `tree_gdn` by itself, in half precision too, against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ddtree_engine.norm import l2_normalize
from tests.engine.trees import ancestor_mask, random_parents

triton = pytest.importorskip("triton")
tl: Any = pytest.importorskip("triton.language")
parts: Any = pytest.importorskip("ddtree_engine.ops.tree_gdn.solve")

solve, split_diagonal = parts.solve, parts.split_diagonal
COLUMNS = 16


@triton.jit
def _solve(
    A, strength, R, U, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr
):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    blocks, rest = split_diagonal(tl.load(A + row[:, None] * ROWS + row[None, :]), ROWS, PRECISION)
    at = row[:, None] * COLUMNS + column[None, :]
    s = tl.load(strength + row)
    tl.store(U + at, solve(blocks, rest, s, tl.load(R + at), rows, ROWS, PRECISION))


def keys(kind: str, rows: int, generator: torch.Generator) -> Tensor:
    """[rows, 32] of length 1: of any direction, or nearly or wholly alike."""
    k = l2_normalize(torch.randn(rows, 32, generator=generator, dtype=torch.float64))
    if kind == "any":
        return k
    return l2_normalize(k[:1] + (0.3 * k if kind == "near" else 0.0 * k))


# As many rows as a tile has, and trees that end in or before its last block.
ROWS = [(16, 16), (16, 1), (32, 20), (64, 64), (64, 33), (64, 50), (128, 121)]


@pytest.mark.parametrize(
    ("kind", "strength"),
    [("any", None), ("alike", 0.99), ("near", 1.0), ("alike", 1.0), ("alike", 0.0)],
)
@pytest.mark.parametrize(("tile", "rows"), ROWS)
@pytest.mark.parametrize(("precision", "close"), [("fp16", 2e-3), ("ieee", 2e-6)])
def test_solves(
    precision: str,
    close: float,
    tile: int,
    rows: int,
    kind: str,
    strength: float | None,
    device: torch.device,
) -> None:
    if tile == 128 and precision == "ieee" and device.type == "cuda":
        pytest.skip("in float32 its matrices fit no GPU")
    generator = torch.Generator().manual_seed(rows)
    k = keys(kind, tile, generator)
    tree = torch.ones(tile, tile, dtype=torch.bool).tril()
    if kind == "any":
        tree = ancestor_mask(random_parents(tile, generator))
    # Rows past the end see no one, and nor does what is above the diagonal count.
    tree[rows:] = False
    A = torch.where(tree, k @ k.T, 0.0)
    s = torch.rand(tile, generator=generator, dtype=torch.float64)
    if strength is not None:
        s = torch.full_like(s, strength)
    R = torch.rand(tile, COLUMNS, generator=generator, dtype=torch.float64) - 0.5
    expected = torch.linalg.solve_triangular(
        s[:, None] * A, s[:, None] * R, upper=False, unitriangular=True
    )
    given = [x.float().to(device) for x in (A, s, R)]
    found = torch.empty(tile, COLUMNS, device=device)
    _solve[(1,)](*given, found, rows, ROWS=tile, COLUMNS=COLUMNS, PRECISION=precision)
    error = (found.cpu().double() - expected)[:rows].norm()
    assert error <= close * expected[:rows].norm()
