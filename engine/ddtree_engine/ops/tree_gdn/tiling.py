"""How a launch of `tree_gdn` cuts its work, and how precise its products are."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ddtree_engine.ops.tree_gdn.products import Precision

PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float32: "tf32x3",
    torch.bfloat16: "fp16",
    torch.float16: "tf32",
}
"""Of the values' dtype: "tf32x3" is close to float32, the others are finer than half precision."""


class Tiling(NamedTuple):
    """How a launch cuts the work.

    Attributes:
        rows: nodes that a program solves for at once, a power of two from 16 to 128.
        tiles: such tiles besides the root, at most 2.
        values: columns of the state that a program has.
        warps: warps of a program.
    """

    rows: int
    tiles: int
    values: int
    warps: int


def choose_tiling(nodes: int, value_dim: int, precision: Precision) -> Tiling:
    """The tiling for trees of `nodes`: the fastest measured, or within 2 % of it.

    Tiles stop at 64 rows but in half precision: matrices of 128 x 128 in float32 need more shared
    memory than any GPU has. With these the largest needs 184 KiB where products read it (SM 9.0),
    80 KiB where they read registers (SM 8.x and 12.0).

    Two limits are Triton 3.6's, on SM 9.0. Two tiles keep to four warps: with eight and 16 values,
    a "tf32" launch ended in an illegal memory access. In half precision 64 rows keep to 64 values,
    needed or not: with 32, products of a state in bfloat16 come out wrong, or end likewise.
    """
    if precision == "fp16" and nodes > 65:
        return Tiling(128, 1, 64, 8)  # the solve stops at the tree's last block
    rows = min(64, max(16, triton.next_power_of_2(nodes - 1)))
    if rows == 32 and precision in ("tf32x3", "ieee"):
        rows = 64  # 32 rows spill 4.4 KB a thread on SM 9.0, twice what 64 do
    tiles = -(-(nodes - 1) // rows)
    if precision == "fp16":
        return Tiling(rows, tiles, 32 if rows == 16 else 64, 4)
    values = 32 if rows == 16 and tiles == 1 else 64
    if tiles == 2:
        values = 32 if precision == "tf32" else 16
    values = min(values, max(16, triton.next_power_of_2(value_dim)))
    return Tiling(rows, tiles, values, 4)
