"""(I + diag(s) A) U = diag(s) R by blocks of 16 rows, A strictly lower triangular.

With D the blocks of A on the diagonal and L what is below them,

    T = (I + diag(s) D)^-1 diag(s),    M = T L,    U = T R - M U,

and the last is a fixed point: each step U <- T R - M U makes one more block of U right, whatever
the others hold. So as many steps as there are blocks below the first end at U itself, and of the
rounding errors of earlier steps none stays. Powers of M or A, which would save steps, grow like
binomials where keys are alike.

T comes the same way in half precision: X <- I - X diag(s) D makes one more column of the inverse
right, the last one first, and ends after 15 steps. On the way the other columns hold parts of the
Neumann series; with no s_i |k_i . k_j| above c they are at most c (1 + c)^14, which fits half
precision up to c = 1.17. In the models c is 1: the strength s is a sigmoid, and keys have length 1.
Else T comes by elimination, which has no such bound.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ddtree_engine.ops.tree_gdn.products import product


@triton.jit
def _eliminate(blocks, inverse, step):
    """Take the multiples of row `step` out of the rows below it."""
    index = tl.arange(0, 16)
    column = tl.sum(tl.where((index == step)[None, None, :], blocks, 0.0), axis=2)
    pivot = tl.sum(tl.where((index == step)[None, :, None], inverse, 0.0), axis=1)
    return inverse - column[:, :, None] * pivot[:, None, :]


@triton.jit
def _inverses(blocks, steps, PRECISION: tl.constexpr):
    """`(I + A)^-1` of every A of `blocks` [blocks, 16, 16], strictly lower triangular."""
    BLOCKS: tl.constexpr = blocks.shape[0]
    index = tl.arange(0, 16)
    identity = tl.where(index[:, None] == index[None, :], 1.0, 0.0)
    inverse = tl.zeros([BLOCKS, 16, 16], tl.float32) + identity[None, :, :]
    if PRECISION == "fp16" and BLOCKS > 1:
        unit, A = inverse, blocks.to(tl.float16)
        for _ in range(steps):
            inverse = unit - tl.dot(inverse.to(tl.float16), A)
    elif BLOCKS == 1:
        for step in tl.static_range(15):
            inverse = _eliminate(blocks, inverse, step)
    else:  # not unrolled: code that runs once waits for its own instructions
        for step in range(15):
            inverse = _eliminate(blocks, inverse, step)
    return inverse


@triton.jit
def _first_of(has, x, more, y):
    """Of two numbers the one that counts; at most one does."""
    return has | more, tl.where(has != 0, x, y)


@triton.jit
def split_diagonal(A, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """A [ROWS, ROWS] as its blocks on the diagonal, [blocks, 16, 16], and the rest of it."""
    BLOCKS: tl.constexpr = ROWS // 16
    block = tl.arange(0, BLOCKS)
    own = (block[:, None] == block[None, :])[:, None, :, None]
    A = A.reshape(BLOCKS, 16, BLOCKS, 16)
    # A choice, not a sum: what is not finite in one block stays out of the others.
    chosen = tl.broadcast_to(own, [BLOCKS, 16, BLOCKS, 16]).to(tl.int32)
    _, blocks = tl.reduce((chosen, A), 2, _first_of)
    rest = (A * tl.where(own, 0.0, 1.0)).reshape(ROWS, ROWS)
    if PRECISION == "fp16":  # as the product takes it, so that fewer registers hold it
        rest = rest.to(tl.float16)
    return blocks, rest


@triton.jit
def solve(blocks, rest, strength, R, rows, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """U [ROWS, columns] of `(I + diag(strength) A) U = diag(strength) R`.

    A is given by its `split_diagonal`, of which what is below the diagonal and in the first `rows`
    rows counts. All are finite; in "fp16" R is at most about 1.
    """
    BLOCKS: tl.constexpr = ROWS // 16
    index = tl.arange(0, 16)
    s = strength.reshape(BLOCKS, 16)
    blocks = tl.where((index[:, None] > index[None, :])[None, :, :], blocks * s[:, :, None], 0.0)
    T = _inverses(blocks, tl.minimum(rows - 1, 15), PRECISION) * s[:, None, :]
    if PRECISION == "fp16":
        T = T.to(tl.float16)
    U = product(T, R.reshape(BLOCKS, 16, R.shape[1]), PRECISION).reshape(ROWS, R.shape[1])
    if ROWS > 16:
        M = product(T, rest.reshape(BLOCKS, 16, ROWS), PRECISION).reshape(ROWS, ROWS)
        if PRECISION == "fp16":
            M = M.to(tl.float16)
        first = U
        for _ in range((rows - 1) // 16):
            U = first - product(M, U, PRECISION)
    return U
