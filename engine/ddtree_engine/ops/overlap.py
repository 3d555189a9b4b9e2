"""How the kernels of a round follow one another: without a gap, weights on their way before.

A kernel that is launched as a dependent (CUDA's programmatic dependent launch, since SM 9.0) takes
its place while the one before it still runs, and waits there for its results. That hides what a
launch takes, which is as long as many of these kernels run.

While small kernels run, memory would be idle. Those that precede a matrix product can ask for the
beginning of each row of its weight, so that the product finds its first tiles in L2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    LAUNCHES_DEPENDENTS = True
except ImportError:  # Triton before 3.4
    LAUNCHES_DEPENDENTS = False

AHEAD_BYTES = 0
"""Most bytes of each row of a weight that are asked for."""
AHEAD_TOTAL = 24 << 20
"""Most bytes of a weight that are asked for."""
AHEAD_PROGRAMS = 64
_LANES: tl.constexpr = tl.constexpr(128)


@triton.jit
def follow(DEPENDENT: tl.constexpr):
    """Let the next kernel take its place, then wait for the one before to have ended."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def follow_without_waiting(DEPENDENT: tl.constexpr):
    """As `follow`, for a program that reads nothing of what the kernel before writes."""
    if DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def ask_ahead(ahead, rows, stride, program, programs, ASM: tl.constexpr):
    """Ask for the beginning of every row of a weight; this program takes its share of the rows."""
    for start in range(program * _LANES, rows, programs * _LANES):
        row = tl.minimum(start + tl.arange(0, _LANES), rows - 1)
        tl.inline_asm_elementwise(
            ASM, "=r,l", [ahead + row.to(tl.int64) * stride], dtype=tl.int32, is_pure=False, pack=1
        )


@cache
def _launches_dependents(device: torch.device) -> bool:
    return (
        LAUNCHES_DEPENDENTS
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


def dependent(device: torch.device) -> dict[str, Any]:
    """Arguments of a kernel launch, for one that begins with `follow`."""
    if _launches_dependents(device):
        return {"DEPENDENT": True, "launch_pdl": True}
    return {"DEPENDENT": False}


def ahead_of(weight: Tensor | None, x: Tensor) -> tuple[int, dict[str, Any]]:
    """Programs to add to a launch, and its arguments, to ask for `weight` ahead of a product.

    `x` is any tensor of the launch; it stands for the weight where nothing is asked for.
    """
    size = 0
    if weight is not None and AHEAD_BYTES and _launches_dependents(x.device):
        size = min(AHEAD_BYTES, AHEAD_TOTAL // weight.shape[0]) // 64 * 64
    if weight is None or not size:
        return 0, {"ahead": x, "ahead_rows": 0, "ahead_stride": 0, "ASM": ""}
    return AHEAD_PROGRAMS, {
        "ahead": weight,
        "ahead_rows": weight.shape[0],
        "ahead_stride": weight.stride(0),
        "ASM": f"cp.async.bulk.prefetch.L2.global [$1], {size}; mov.u32 $0, 0;",
    }
