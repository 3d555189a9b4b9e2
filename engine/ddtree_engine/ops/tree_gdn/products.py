"""Matrix products of `tree_gdn` in the precision of a launch."""

from __future__ import annotations

from typing import Literal

import triton
import triton.language as tl

Precision = Literal["fp16", "tf32", "tf32x3", "ieee"]
"""How products of float32 numbers round their operands; "fp16" takes those that are near 1."""


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """`a @ b` of float32 numbers; of two batches, if they have three dimensions."""
    if PRECISION == "fp16":
        result = tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        result = tl.dot(a, b, input_precision=PRECISION, out_dtype=tl.float32)
    return result


@triton.jit
def similarity(a, b, PRECISION: tl.constexpr):
    """`a @ b^T` of queries and keys as they came."""
    if PRECISION == "fp16":
        result = tl.dot(a, tl.trans(b))
    else:
        result = tl.dot(a, tl.trans(b), input_precision=PRECISION, out_dtype=tl.float32)
    return result


@triton.jit
def times_state(rows, S, PRECISION: tl.constexpr):
    """`rows` [ROWS, KEY] times the state S [KEY, VALUE]; in "fp16" S is a sum of two bfloat16."""
    if PRECISION == "fp16":
        high = S.to(tl.bfloat16)
        low = (S - high.to(tl.float32)).to(tl.bfloat16)
        result = tl.dot(rows, low, tl.dot(rows, high))
    else:
        result = tl.dot(rows.to(tl.float32), S, input_precision=PRECISION, out_dtype=tl.float32)
    return result
