"""`tree_gdn` on the GPU: one program for each request, value head and slice of the value dimension.

A program reads its slice of the committed state once and writes nothing but outputs. The root, an
ancestor of every node, is one step of the plain recurrence; the other nodes are the WY form of
`vectorized.py` over the state after the root, in tiles of up to 64 rows. So 65 nodes fill one tile,
129 two, and one node needs none.

(I + A) U = R is solved by blocks: diagonal blocks of 16 by elimination of one column after the
other, then pairs of blocks are joined, `[[T1, 0], [-T2 A21 T1, T2]]`, and the last pair is applied
to R directly. No power of A is formed: powers grow like binomials where keys are alike.

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
MAX_KEY_DIM = 128
"""Of keys of 256 in float32 a tile needs up to 360 KiB of shared memory, more than any GPU has."""

_NEVER: tl.constexpr = tl.constexpr(float("-inf"))
"""The logarithm of no decay at all: what a node takes over from one that it does not see."""

Precision = Literal["tf32", "tf32x3", "ieee"]


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=tl.float32)


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
    for step in tl.static_range(15):
        column = tl.sum(tl.where((index == step)[None, None, :], blocks, 0.0), axis=2)
        pivot = tl.sum(tl.where((index == step)[None, :, None], inverse, 0.0), axis=1)
        inverse -= column[:, :, None] * pivot[:, None, :]
    spread = tl.broadcast_to(inverse[:, :, None, :], [BLOCKS, 16, BLOCKS, 16])
    return tl.where(same, spread.reshape(ROWS, ROWS), 0.0)


@triton.jit
def _lower_of_pairs(A, SIDE: tl.constexpr, ROWS: tl.constexpr):
    """A where its row is in the second and its column in the first block of a pair of blocks."""
    block = tl.arange(0, ROWS) // SIDE
    lower = (block[:, None] == block[None, :] + 1) & (block[None, :] % 2 == 0)
    return tl.where(lower, A, 0.0)


@triton.jit
def _solve(A, R, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """U of `(I + A) U = R` for strictly lower triangular A [ROWS, ROWS] and R [ROWS, columns]."""
    T = _inverse_of_diagonal_blocks(A, ROWS)
    if ROWS == 64:
        T -= _product(_product(T, _lower_of_pairs(A, 16, ROWS), PRECISION), T, PRECISION)
    U = _product(T, R, PRECISION)
    if ROWS > 16:
        lower = _lower_of_pairs(A, ROWS // 2, ROWS)
        U -= _product(T, _product(lower, U, PRECISION), PRECISION)
    return U


@triton.jit
def _as_row(x, diagonal):
    """A column of numbers [ROWS] as a row: `diagonal` [ROWS, ROWS] is true on the diagonal."""
    return tl.sum(tl.where(diagonal, x[:, None], 0.0), axis=0)


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

    # The root: the recurrence itself.
    k_root = tl.load(k + key, mask=some_key, other=0.0).to(tl.float32)
    q_root = tl.load(q + key, mask=some_key, other=0.0).to(tl.float32)
    v_root = tl.load(v + value, mask=some_value, other=0.0).to(tl.float32)
    S *= tl.exp(tl.load(g).to(tl.float32))
    delta = tl.load(beta).to(tl.float32) * (v_root - tl.sum(S * k_root[:, None], axis=0))
    S += k_root[:, None] * delta[None, :]
    out_root = tl.sum(S * q_root[:, None], axis=0)
    tl.store(out + value, out_root.to(out.dtype.element_ty), mask=some_value)

    # The other nodes, a tile after the other; a later tile has ancestors in the earlier one too.
    earlier = tl.constexpr(None)
    for tile in tl.static_range(TILES):
        node = 1 + tile * ROWS + tl.arange(0, ROWS)
        some_node = node < nodes
        diagonal = node[:, None] == node[None, :]
        seen = _load_seen(ancestors, ancestors_node, node, node, nodes)
        keys = tl.load(
            k + node[:, None] * k_node + key[None, :],
            mask=some_node[:, None] & some_key[None, :],
            other=0.0,
        )
        values = tl.load(
            v + node[:, None] * v_node + value[None, :],
            mask=some_node[:, None] & some_value[None, :],
            other=0.0,
        ).to(tl.float32)
        log_decay = tl.load(g + node * g_node, mask=some_node, other=0.0).to(tl.float32)
        strength = tl.load(beta + node * beta_node, mask=some_node, other=0.0).to(tl.float32)

        G = tl.sum(tl.where(seen, log_decay[None, :], 0.0), axis=1)
        if tile == 1:
            earlier_keys, earlier_U, earlier_G_row, earlier_log_decay, earlier_broken_row = earlier
            seen_earlier = _load_seen(ancestors, ancestors_node, node, node - ROWS, nodes)
            G += tl.sum(tl.where(seen_earlier, earlier_log_decay[None, :], 0.0), axis=1)
        G_row = _as_row(G, diagonal)
        grown = tl.exp(G)
        R = strength[:, None] * (
            values - grown[:, None] * _product(keys.to(tl.float32), S, PRECISION)
        )
        # A sum is finite only if every term is; 0 * x is 0 only for a finite x.
        broken = tl.where(0.0 * (G + tl.sum(R, axis=1)) == 0.0, 0.0, 1.0)
        broken_row = _as_row(broken, diagonal)
        reached = tl.sum(tl.where(seen, broken_row[None, :], 0.0), axis=1)
        sound = (broken[:, None] == 0.0) & (broken_row[None, :] == 0.0)
        R = tl.where(broken[:, None] == 0.0, R, 0.0)
        if tile == 1:
            reached += tl.sum(tl.where(seen_earlier, earlier_broken_row[None, :], 0.0), axis=1)
            sound_earlier = (broken[:, None] == 0.0) & (earlier_broken_row[None, :] == 0.0)
            gap = tl.where(
                seen_earlier & sound_earlier, G[:, None] - earlier_G_row[None, :], _NEVER
            )
            decay_earlier = tl.exp(gap)
            similar = _product(keys, tl.trans(earlier_keys), PRECISION)
            A = tl.where(sound_earlier, strength[:, None] * decay_earlier * similar, 0.0)
            R -= _product(A, earlier_U, PRECISION)

        # Masked before exp: between branches the difference can be large and positive.
        decay = tl.exp(tl.where(seen & sound, G[:, None] - G_row[None, :], _NEVER))
        similar = _product(keys, tl.trans(keys), PRECISION)
        A = tl.where(sound & (diagonal == 0), strength[:, None] * decay * similar, 0.0)
        U = _solve(A, R, ROWS, PRECISION)

        queries = tl.load(
            q + node[:, None] * q_node + key[None, :],
            mask=some_node[:, None] & some_key[None, :],
            other=0.0,
        )
        result = grown[:, None] * _product(queries.to(tl.float32), S, PRECISION)
        scores = _product(queries, tl.trans(keys), PRECISION)
        result += _product(tl.where(sound, scores * decay, 0.0), U, PRECISION)
        if tile == 1:
            scores = _product(queries, tl.trans(earlier_keys), PRECISION)
            weights = tl.where(sound_earlier, scores * decay_earlier, 0.0)
            result += _product(weights, earlier_U, PRECISION)
        result = tl.where((reached > 0.0)[:, None], float("nan"), result)
        tl.store(
            out + node[:, None] * out_node + value[None, :],
            result.to(out.dtype.element_ty),
            mask=some_node[:, None] & some_value[None, :],
        )
        if tile + 1 < TILES:
            earlier = keys, U, G_row, log_decay, broken_row


class Tiling(NamedTuple):
    """How a launch cuts the work.

    Attributes:
        rows: nodes that a program solves for at once, a power of two from 16 to 64.
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

    Tiles stop at 64 rows: matrices of 128 x 128 in float32 need more shared memory than any GPU
    has. With these the largest needs 216 KiB where products read it (SM 9.0), 64 KiB where they
    read registers (SM 8.x and 12.0). Two tiles keep to four warps: with eight and 16 values,
    Triton 3.6 and "tf32" a launch on SM 9.0 ended in an illegal memory access.
    """
    half = precision == "tf32"
    rows = min(64, max(16, triton.next_power_of_2(nodes - 1)))
    if rows == 32 and not half:
        rows = 64  # 32 rows spill 20 KB a thread on SM 9.0, ten times what 64 do
    tiles = -(-(nodes - 1) // rows)
    values = 32 if rows == 16 and tiles == 1 else 64
    if tiles == 2:
        values = 32 if half else 16
    values = min(values, max(16, triton.next_power_of_2(value_dim)))
    warps = 8 if (rows, tiles, values) == (64, 1, 64) and not half else 4
    return Tiling(rows, tiles, values, warps)


def supports(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> bool:
    """Whether the kernel takes these shapes and strides; if not, `vectorized.py` does."""
    return (
        q.shape[1] <= MAX_NODES
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
        precision: of matrix products of float32 numbers. By default "tf32" where `v` is in half
            precision, whose rounding is coarser still, and "tf32x3", close to float32, where it is
            not.
        tiling: by default `choose_tiling`'s.
    """
    B, N, HK, dk = q.shape
    HV, dv = v.shape[2:]
    if precision is None:
        precision = "tf32x3" if v.dtype == torch.float32 else "tf32"
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
