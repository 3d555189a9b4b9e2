"""`tree_gdn` on the GPU: one program for each request, value head and slice of the value dimension.

A program reads its slice of the committed state once and writes nothing but outputs. The root, an
ancestor of every node, is one step of the plain recurrence; the other nodes are the WY form of
`vectorized.py` over the state after the root, in tiles of up to 64 rows, in half precision of up
to 128. So 65 nodes fill one tile, 129 one or two, and one node needs none.

(I + A) U = R is solved by blocks: T, the inverse of the diagonal blocks of 16, by elimination of a
column after the other; then, with M = T times what A has outside of them, U = (I - M)(I + M^2) T R,
as M^4 = 0. Higher powers would grow like binomials where keys are alike; powers of A itself do. So
128 rows are solved in halves: each as if the other were not there, for V; then, with what A has
below both as B, U = V - solve(B V).

Much of the time goes into fetching instructions, since each runs once: shorter code is faster code.

A node whose numbers are not finite is taken out of every sum that others share, and its descendants
get NaN at the end.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_NODES = 129
MAX_FLOAT32_NODES = 65
"""Two tiles in float32 spill more than they compute: PyTorch takes 310 µs where they take 406."""
MAX_KEY_DIM = 128
"""Of keys of 256 in float32 a tile needs up to 360 KiB of shared memory, more than any GPU has."""

_NEVER: tl.constexpr = tl.constexpr(float("-inf"))
"""The logarithm of no decay at all: what a node takes over from one that it does not see."""

_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)

Precision = Literal["fp16", "tf32", "tf32x3", "ieee"]


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """`a @ b` of float32 numbers."""
    if PRECISION == "fp16":
        product = tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        product = tl.dot(a, b, input_precision=PRECISION, out_dtype=tl.float32)
    return product


@triton.jit
def _similar(a, b, PRECISION: tl.constexpr):
    """`a @ b^T` of queries and keys as they came."""
    if PRECISION == "fp16":
        product = tl.dot(a, tl.trans(b))
    else:
        product = tl.dot(a, tl.trans(b), input_precision=PRECISION, out_dtype=tl.float32)
    return product


@triton.jit
def _eliminate(blocks, inverse, step):
    """Take the multiples of row `step` out of the rows below it."""
    index = tl.arange(0, 16)
    column = tl.sum(tl.where((index == step)[None, None, :], blocks, 0.0), axis=2)
    pivot = tl.sum(tl.where((index == step)[None, :, None], inverse, 0.0), axis=1)
    return inverse - column[:, :, None] * pivot[:, None, :]


@triton.jit
def _inverse_of_diagonal_blocks(A, ROWS: tl.constexpr):
    """`(I + A)^-1` of the 16x16 blocks on the diagonal of A [ROWS, ROWS], zero elsewhere."""
    BLOCKS: tl.constexpr = ROWS // 16
    row = tl.arange(0, ROWS)
    same = (row // 16)[:, None] == (row // 16)[None, :]
    blocks = tl.sum(tl.where(same, A, 0.0).reshape(BLOCKS, 16, BLOCKS, 16), axis=2)
    index = tl.arange(0, 16)
    identity = tl.where(index[:, None] == index[None, :], 1.0, 0.0)
    inverse = tl.zeros([BLOCKS, 16, 16], tl.float32) + identity[None, :, :]
    if ROWS == 16:
        for step in tl.static_range(15):
            inverse = _eliminate(blocks, inverse, step)
    else:  # not unrolled: code that runs once waits for its own instructions
        for step in range(15):
            inverse = _eliminate(blocks, inverse, step)
    spread = tl.broadcast_to(inverse[:, :, None, :], [BLOCKS, 16, BLOCKS, 16])
    return tl.where(same, spread.reshape(ROWS, ROWS), 0.0)


@triton.jit
def _solver(A, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """What `_solve` needs of a strictly lower triangular A [ROWS, ROWS], whatever R is.

    Returns:
        T, M and M^2 of the blocks of 64, and the rest of A.
    """
    T = _inverse_of_diagonal_blocks(A, ROWS)
    M, M2, below = T, T, A
    if ROWS > 16:
        block = tl.arange(0, ROWS) // 16
        near = tl.where(block[:, None] == block[None, :], 0.0, A)
        if ROWS == 128:
            same = (block // 4)[:, None] == (block // 4)[None, :]
            below = tl.where(same, 0.0, A)
            near = tl.where(same, near, 0.0)
        M = _product(T, near, PRECISION)
        if ROWS >= 64:
            M2 = _product(M, M, PRECISION)
    if PRECISION == "fp16":  # as products take them, so that fewer registers hold them
        T, M, M2 = T.to(tl.float16), M.to(tl.float16), M2.to(tl.float16)
        below = below.to(tl.float16)
    return T, M, M2, below


@triton.jit
def _solve(T, M, M2, R, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """U of `(I + A) U = R`, R [ROWS, columns], A without what is outside of its blocks of 64."""
    U = _product(T, R, PRECISION)
    if ROWS >= 64:
        U += _product(M2, U, PRECISION)
    if ROWS > 16:
        U -= _product(M, U, PRECISION)
    return U


@triton.jit
def _times_state(rows, S, PRECISION: tl.constexpr):
    """`rows` [ROWS, KEY] times the state S [KEY, VALUE]."""
    if PRECISION == "fp16":
        high = S.to(tl.bfloat16)
        low = (S - high.to(tl.float32)).to(tl.bfloat16)
        product = tl.dot(rows, low, tl.dot(rows, high))
    else:
        product = tl.dot(rows.to(tl.float32), S, input_precision=PRECISION, out_dtype=tl.float32)
    return product


@triton.jit
def _finite(x):
    """`x` with zeros for what is not finite: 0 * x is 0 only for a finite x."""
    return tl.where(x * 0.0 == 0.0, x, 0.0)


@triton.jit
def _size(R, PRECISION: tl.constexpr):
    """A power of two for each column, by which R is divided to fit half precision; [1, columns].

    A power of two, so that a node's rounding does not depend on what stands in other branches.
    """
    size = tl.full([1, 1], 1.0, tl.float32)
    if PRECISION == "fp16":
        size = tl.maximum(tl.max(tl.abs(R), axis=0), 1e-30)[None, :]
        size = (size.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return size


@triton.jit
def _root(S, k, q, v, g, beta, out, some_value):
    """Store the root's output, a step of the plain recurrence; the state after it."""
    S *= tl.exp(g)
    delta = beta * (v - tl.sum(S * k[:, None], axis=0))
    S += k[:, None] * delta[None, :]
    result = tl.sum(S * q[:, None], axis=0)
    tl.store(out, result.to(out.dtype.element_ty), mask=some_value)
    return S


@triton.jit
def _load_seen(ancestors, row_stride, row, column, nodes):
    """Whether node `row[i]` has the ancestor `column[j]`, or is it; [ROWS, ROWS]."""
    return tl.load(
        ancestors + row[:, None] * row_stride + column[None, :],
        mask=(row < nodes)[:, None] & (column < nodes)[None, :],
        other=0,
    ).to(tl.int1)


@triton.jit(
    do_not_specialize=["nodes", "g_batch", "beta_batch", "ancestors_batch", "ancestors_node"]
)
def _tree_gdn(
    q,
    k,
    v,
    g,
    beta,
    state,
    ancestors,
    out,
    nodes,
    key_dim,
    value_dim,
    value_heads,
    q_batch,
    q_node,
    q_head,
    k_batch,
    k_node,
    k_head,
    v_batch,
    v_node,
    v_head,
    g_batch,
    g_node,
    beta_batch,
    beta_node,
    state_batch,
    state_head,
    state_key,
    ancestors_batch,
    ancestors_node,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(1)
    b = tl.program_id(2)
    EAGER: tl.constexpr = PRECISION == "fp16" and ROWS == 16
    q += b * q_batch + (head // GROUP) * q_head
    k += b * k_batch + (head // GROUP) * k_head
    v += b * v_batch + head * v_head
    g += b * g_batch + head
    beta += b * beta_batch + head
    ancestors += b * ancestors_batch
    out += (b * nodes * value_heads + head) * value_dim
    out_node = value_heads * value_dim

    key = tl.arange(0, KEY)
    value = tl.program_id(0) * VALUE + tl.arange(0, VALUE)
    some_key, some_value = key < key_dim, value < value_dim
    S = tl.load(
        state + b * state_batch + head * state_head + key[:, None] * state_key + value[None, :],
        mask=some_key[:, None] & some_value[None, :],
        other=0.0,
    )
    k_root = tl.load(k + key, mask=some_key, other=0.0).to(tl.float32)
    q_root = tl.load(q + key, mask=some_key, other=0.0).to(tl.float32)
    v_root = tl.load(v + value, mask=some_value, other=0.0).to(tl.float32)
    g_root = tl.load(g).to(tl.float32)
    beta_root = tl.load(beta).to(tl.float32)
    if TILES == 0:
        _root(S, k_root, q_root, v_root, g_root, beta_root, out + value, some_value)

    # The other nodes, a tile after the other; a later tile has ancestors in the earlier one too.
    earlier = tl.constexpr(None)
    for tile in tl.static_range(TILES):
        node = 1 + tile * ROWS + tl.arange(0, ROWS)
        some_node = node < nodes
        # Where there are registers for it, every load comes before the first product, and what
        # needs no state before what does: the state comes from far.
        some_row = some_node[:, None] & some_key[None, :]
        queries_at = q + node[:, None] * q_node + key[None, :]
        keys = tl.load(k + node[:, None] * k_node + key[None, :], mask=some_row, other=0.0)
        if EAGER:
            queries = tl.load(queries_at, mask=some_row, other=0.0)
        log_decay = tl.load(g + node * g_node, mask=some_node, other=0.0).to(tl.float32)
        strength = tl.load(beta + node * beta_node, mask=some_node, other=0.0).to(tl.float32)
        seen = _load_seen(ancestors, ancestors_node, node, node, nodes)
        values = tl.load(
            v + node[:, None] * v_node + value[None, :],
            mask=some_node[:, None] & some_value[None, :],
            other=0.0,
        ).to(tl.float32)
        G = tl.sum(tl.where(seen, log_decay[None, :], 0.0), axis=1)
        if tile == 1:
            earlier_keys, earlier_U, earlier_size, earlier_G, earlier_log_decay, was_broken = (
                earlier
            )
            seen_earlier = _load_seen(ancestors, ancestors_node, node, node - ROWS, nodes)
            G += tl.sum(tl.where(seen_earlier, earlier_log_decay[None, :], 0.0), axis=1)
        G *= _LOG2_E
        grown = tl.exp2(G)[:, None]
        if not EAGER:
            if tile == 0:
                S = _root(S, k_root, q_root, v_root, g_root, beta_root, out + value, some_value)
            R = strength[:, None] * (values - grown * _times_state(keys, S, PRECISION))

        # Masked before exp: between branches the difference can be large and positive.
        decay = tl.exp2(tl.where(seen, G[:, None] - G[None, :], _NEVER))
        A = _finite(strength[:, None] * decay * _similar(keys, keys, PRECISION))
        A = tl.where(node[:, None] == node[None, :], 0.0, A)
        T, M, M2, below = _solver(A, ROWS, PRECISION)
        if EAGER:
            weights = _finite(decay * _similar(queries, keys, PRECISION))
            if tile == 0:
                S = _root(S, k_root, q_root, v_root, g_root, beta_root, out + value, some_value)
            R = strength[:, None] * (values - grown * _times_state(keys, S, PRECISION))
        # A sum is finite only if every term is.
        broken = tl.where(0.0 * (G + tl.sum(R, axis=1)) == 0.0, 0.0, 1.0)
        R = tl.where(broken[:, None] == 0.0, R, 0.0)
        if tile == 1:
            decay_earlier = tl.exp2(tl.where(seen_earlier, G[:, None] - earlier_G[None, :], _NEVER))
            similar = strength[:, None] * decay_earlier * _similar(keys, earlier_keys, PRECISION)
            R -= _product(_finite(similar), earlier_U, PRECISION) * earlier_size
        size = _size(R, PRECISION)
        U = _solve(T, M, M2, R * (1.0 / size), ROWS, PRECISION)
        if ROWS == 128:
            U -= _solve(T, M, M2, _product(below, U, PRECISION), ROWS, PRECISION)

        if not EAGER:
            queries = tl.load(queries_at, mask=some_row, other=0.0)
            weights = _finite(decay * _similar(queries, keys, PRECISION))
        result = grown * _times_state(queries, S, PRECISION)
        result += _product(weights, U, PRECISION) * size
        if tile == 1:
            similar = decay_earlier * _similar(queries, earlier_keys, PRECISION)
            result += _product(_finite(similar), earlier_U, PRECISION) * earlier_size

        any_broken = tl.max(broken, axis=0)
        if tile == 1:
            any_broken = tl.maximum(any_broken, tl.max(was_broken, axis=0))
        if any_broken > 0.0:
            seen = _load_seen(ancestors, ancestors_node, node, node, nodes)
            reached = tl.sum(tl.where(seen, broken[None, :], 0.0), axis=1)
            if tile == 1:
                seen = _load_seen(ancestors, ancestors_node, node, node - ROWS, nodes)
                reached += tl.sum(tl.where(seen, was_broken[None, :], 0.0), axis=1)
            result = tl.where((reached > 0.0)[:, None], float("nan"), result)
        tl.store(
            out + node[:, None] * out_node + value[None, :],
            result.to(out.dtype.element_ty),
            mask=some_node[:, None] & some_value[None, :],
        )
        if tile + 1 < TILES:
            earlier = keys, U, size, G, log_decay, broken


PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float32: "tf32x3",
    torch.bfloat16: "fp16",
    torch.float16: "tf32",
}


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
    64 KiB where they read registers (SM 8.x and 12.0).

    Two limits are Triton 3.6's, on SM 9.0. Two tiles keep to four warps: with eight and 16 values,
    a "tf32" launch ended in an illegal memory access. In half precision 64 rows keep to 64 values,
    needed or not: with 32, products of a state in bfloat16 come out wrong, or end likewise.
    """
    if precision == "fp16" and nodes > 65:
        return Tiling(128, 1, 64, 8)  # half of it idle or not, it is as fast as two of 64
    rows = min(64, max(16, triton.next_power_of_2(nodes - 1)))
    if rows == 32 and precision in ("tf32x3", "ieee"):
        rows = 64  # 32 rows spill 20 KB a thread on SM 9.0, ten times what 64 do
    tiles = -(-(nodes - 1) // rows)
    if precision == "fp16":
        return Tiling(rows, tiles, 32 if rows == 16 else 64, 4)
    values = 32 if rows == 16 and tiles == 1 else 64
    if tiles == 2:
        values = 32 if precision == "tf32" else 16
    values = min(values, max(16, triton.next_power_of_2(value_dim)))
    return Tiling(rows, tiles, values, 4)


def supports(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> bool:
    """Whether the kernel takes these shapes and strides, and pays; if not, `vectorized.py` does."""
    return (
        q.shape[1] <= (MAX_FLOAT32_NODES if v.dtype == torch.float32 else MAX_NODES)
        and q.shape[3] <= MAX_KEY_DIM
        and state.dtype == torch.float32
        and all(tensor.stride(3) == 1 for tensor in (q, k, v, state))
    )


def tree_gdn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    ancestors: Tensor,
    *,
    precision: Precision | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """See `naive.tree_gdn`. Node 0 is an ancestor of every node, as it is in a tree.

    Args:
        q: as in `naive.tree_gdn`, at most 129 nodes.
        k: likewise.
        v: likewise; the result has its dtype.
        g: likewise.
        beta: likewise.
        state: likewise, float32.
        ancestors: likewise.
        precision: of matrix products of float32 numbers. By default "tf32x3", close to float32,
            where `v` is float32. Where it is in half precision, whose rounding is coarser still,
            as many bits as "tf32" has: "fp16" of bfloat16, where columns are scaled to about 1 and
            the state is the sum of two bfloat16 numbers; "tf32" of float16.
        tiling: by default `choose_tiling`'s.
    """
    B, N, HK, dk = q.shape
    HV, dv = v.shape[2:]
    if precision is None:
        precision = PRECISIONS[v.dtype]
    if tiling is None:
        tiling = choose_tiling(N, dv, precision)
    out = torch.empty(B, N, HV, dv, dtype=v.dtype, device=v.device)
    _tree_gdn[(triton.cdiv(dv, tiling.values), HV, B)](
        q,
        k,
        v,
        g,
        beta,
        state,
        ancestors,
        out,
        N,
        dk,
        dv,
        HV,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *g.stride()[:2],
        *beta.stride()[:2],
        *state.stride()[:3],
        *ancestors.stride()[:2],
        GROUP=HV // HK,
        ROWS=tiling.rows,
        TILES=tiling.tiles,
        KEY=max(16, triton.next_power_of_2(dk)),
        VALUE=tiling.values,
        PRECISION=precision,
        num_warps=tiling.warps,
    )
    return out
