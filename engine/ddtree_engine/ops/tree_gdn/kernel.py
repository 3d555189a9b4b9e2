"""`tree_gdn` on the GPU: one program for each request, value head and slice of the value dimension.

A program reads its slice of the committed state once and writes nothing but outputs. The root, an
ancestor of every node, is one step of the plain recurrence; the other nodes are the WY form of
`vectorized.py` over the state after the root, in tiles of up to 64 rows, in half precision of up
to 128. So 65 nodes fill one tile, 129 one or two, and one node needs none. `solve.py` has the
triangular solve.

Much of the time goes into fetching instructions, since each runs once: shorter code is faster code.
So masks are bits (`mask.py`), loops are not unrolled, and what concerns numbers that are not finite
stands in one branch.

A node whose numbers are not finite is taken out of every sum that others share, and its descendants
get NaN at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.ops.ancestor_bits import MAX_NODES
from ddtree_engine.ops.ancestor_bits import kernel as bits_kernel
from ddtree_engine.ops.tree_gdn import mask
from ddtree_engine.ops.tree_gdn.products import Precision, product, similarity, times_state
from ddtree_engine.ops.tree_gdn.solve import solve, split_diagonal
from ddtree_engine.ops.tree_gdn.tiling import PRECISIONS, Tiling, choose_tiling

MAX_KEY_DIM = 128
"""Of keys of 256 in float32 a tile needs up to 360 KiB of shared memory, more than any GPU has."""

_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _finite(x):
    """`x` with zeros for what is not finite: 0 * x is 0 only for a finite x."""
    return tl.where(x * 0.0 == 0.0, x, 0.0)


@triton.jit
def _larger(a, b):
    """The larger number, or NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _root(S, k, q, v, g, beta, out, some_value):
    """Store the root's output, a step of the plain recurrence; the state after it."""
    S *= tl.exp(g)
    delta = beta * (v - tl.sum(S * k[:, None], axis=0))
    S += k[:, None] * delta[None, :]
    result = tl.sum(S * q[:, None], axis=0)
    tl.store(out, result.to(out.dtype.element_ty), mask=some_value)
    return S


@triton.jit(do_not_specialize=["nodes", "g_batch", "beta_batch"])
def _tree_gdn(
    q,
    k,
    v,
    g,
    beta,
    state,
    bits,
    out,
    nodes,
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
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(1)
    b = tl.program_id(2)
    # Where there are registers for it, every load and product comes before what needs the state,
    # which comes from far.
    EAGER: tl.constexpr = PRECISION == "fp16" and ROWS != 32
    q += b * q_batch + (head // GROUP) * q_head
    k += b * k_batch + (head // GROUP) * k_head
    v += b * v_batch + head * v_head
    g += b * g_batch + head
    beta += b * beta_batch + head
    bits += b * nodes * mask.WORDS
    out += (b * nodes * value_heads + head) * VALUE_DIM
    out_node = value_heads * VALUE_DIM

    key = tl.arange(0, KEY)
    value = tl.program_id(0) * VALUE + tl.arange(0, VALUE)
    some_key, some_value = key < KEY_DIM, value < VALUE_DIM
    if KEY_DIM == KEY:
        some_key = tl.full([KEY], True, tl.int1)
    if VALUE_DIM % VALUE == 0:
        some_value = tl.full([VALUE], True, tl.int1)
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
        # Rows beyond the last node repeat it: they see no one, and no one sees them.
        near = tl.minimum(node, nodes - 1)
        words = mask.load_words(bits, node, nodes, tile, ROWS)
        # Two columns and a sum, so that the compiler doesn't load a node's for each that needs it.
        one_of_two = tl.arange(0, 2)[None, :] == 0
        at = g + near[:, None] * g_node + tl.zeros([1, 2], tl.int32)
        log_decay = tl.sum(tl.load(at, mask=one_of_two, other=0.0).to(tl.float32), axis=1)
        strength = tl.load(beta + near * beta_node).to(tl.float32)
        keys = tl.load(k + near[:, None] * k_node + key[None, :], mask=some_key[None, :], other=0.0)
        queries_at = q + near[:, None] * q_node + key[None, :]
        if EAGER:
            queries = tl.load(queries_at, mask=some_key[None, :], other=0.0)
        values = tl.load(
            v + near[:, None] * v_node + value[None, :], mask=some_value[None, :], other=0.0
        ).to(tl.float32)
        A = similarity(keys, keys, PRECISION)
        if EAGER:
            weights = similarity(queries, keys, PRECISION)
        sees = mask.sees(words, A, ROWS)
        G = tl.sum(tl.where(sees, log_decay[None, :], 0.0), axis=1)
        if tile == 1:
            earlier_keys, earlier_U, earlier_G, earlier_log_decay, earlier_lost = earlier
            earlier_words = mask.load_words(bits, node, nodes, 0, ROWS)
            sees_earlier = mask.sees(earlier_words, A, ROWS)
            G += tl.sum(tl.where(sees_earlier, earlier_log_decay[None, :], 0.0), axis=1)
        G *= _LOG2_E
        grown = tl.exp2(G)

        # Between branches the difference can be large and positive: a mask, not a factor of 0.
        decay = tl.where(sees, tl.exp2(G[:, None] - G[None, :]), 0.0)
        blocks, rest = split_diagonal(A * decay, ROWS, PRECISION)
        if EAGER:  # in half precision already, so that fewer registers hold them
            weights = (weights * decay).to(tl.float16)

        if tile == 0:
            S = _root(S, k_root, q_root, v_root, g_root, beta_root, out + value, some_value)
        R = values - grown[:, None] * times_state(keys, S, PRECISION)
        largest = tl.reduce(tl.abs(R), 1, _larger) + 0.0 * (G + strength)
        size = tl.reduce(largest, 0, _larger)
        any_broken = size * 0.0 != 0.0
        if tile == 1:
            any_broken |= (
                earlier_lost[0] | earlier_lost[1] | earlier_lost[2] | earlier_lost[3]
            ) != 0
        lost = (0, 0, 0, 0)
        if any_broken:
            broken = tl.where(largest * 0.0 == 0.0, 0, 1)
            lost = mask.pack(broken, ROWS)
            met = mask.meet(words, lost)
            if tile == 1:
                met |= mask.meet(earlier_words, earlier_lost)
                earlier_words = mask.without(earlier_words, earlier_lost, broken)
            grown = tl.where(met != 0, float("nan"), grown)
            blocks = _finite(blocks)
            rest = _finite(rest)
            if EAGER:
                weights = _finite(weights)
            else:
                words = mask.without(words, lost, broken)
            size = tl.max(tl.where(broken == 0, largest, 0.0), axis=0)
            R = tl.where(broken[:, None] != 0, 0.0, R)
            strength = tl.where(broken != 0, 0.0, strength)
        if tile == 1:
            similar = similarity(keys, earlier_keys, PRECISION)
            sees_earlier = mask.sees(earlier_words, similar, ROWS)
            decay_earlier = tl.exp2(G[:, None] - earlier_G[None, :])
            R -= product(tl.where(sees_earlier, decay_earlier * similar, 0.0), earlier_U, PRECISION)
        if PRECISION == "fp16":
            # A power of two, so that no node's rounding depends on what is in other branches.
            exponent = tl.minimum(tl.maximum(size, 1e-30), 1e36).to(tl.int32, bitcast=True)
            exponent = exponent & 0x7F800000
            R *= (0x7E000000 - exponent).to(tl.float32, bitcast=True)
            size = (exponent + 0x01000000).to(tl.float32, bitcast=True)
        U = solve(
            blocks, rest, strength, R, tl.minimum(nodes - 1 - tile * ROWS, ROWS), ROWS, PRECISION
        )
        if not EAGER:
            queries = tl.load(queries_at, mask=some_key[None, :], other=0.0)
            weights = similarity(queries, keys, PRECISION) * tl.exp2(G[:, None] - G[None, :])
            weights = tl.where(mask.sees(words, weights, ROWS), weights, 0.0)
        update = product(weights, U, PRECISION)
        if PRECISION == "fp16":
            update *= size
            U *= size
        result = grown[:, None] * times_state(queries, S, PRECISION) + update
        if tile == 1:
            similar = decay_earlier * similarity(queries, earlier_keys, PRECISION)
            result += product(tl.where(sees_earlier, similar, 0.0), earlier_U, PRECISION)
        tl.store(
            out + node[:, None] * out_node + value[None, :],
            result.to(out.dtype.element_ty),
            mask=some_node[:, None] & some_value[None, :],
        )
        if tile + 1 < TILES:
            earlier = keys, U, G, log_decay, lost


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
    bits: Tensor | None = None,
    *,
    precision: Precision | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """See `naive.tree_gdn`. Node 0 is an ancestor of every node, as it is in a tree.

    Args:
        q: as in `naive.tree_gdn`, at most 129 nodes.
        k: likewise. In "fp16" beta |k|^2 may be little more than 1: `solve.py` says why.
        v: likewise; the result has its dtype.
        g: likewise.
        beta: likewise.
        state: likewise, float32.
        ancestors: likewise; not read where there are
        bits: `ancestor_bits` of them, contiguous.
        precision: of matrix products of float32 numbers. By default "tf32x3", close to float32,
            where `v` is float32. Where it is in half precision, whose rounding is coarser still,
            as many bits as "tf32" has: "fp16" of bfloat16, where numbers are scaled to about 1 and
            the state is the sum of two bfloat16 numbers; "tf32" of float16.
        tiling: by default `choose_tiling`'s.
    """
    B, N, HK, dk = q.shape
    HV, dv = v.shape[2:]
    if precision is None:
        precision = PRECISIONS[v.dtype]
    if tiling is None:
        tiling = choose_tiling(N, dv, precision)
    if bits is None:
        bits = bits_kernel.ancestor_bits(ancestors)
    out = torch.empty(B, N, HV, dv, dtype=v.dtype, device=v.device)
    _tree_gdn[(triton.cdiv(dv, tiling.values), HV, B)](
        q,
        k,
        v,
        g,
        beta,
        state,
        bits,
        out,
        N,
        HV,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *g.stride()[:2],
        *beta.stride()[:2],
        *state.stride()[:3],
        KEY_DIM=dk,
        VALUE_DIM=dv,
        GROUP=HV // HK,
        ROWS=tiling.rows,
        TILES=tiling.tiles,
        KEY=max(16, triton.next_power_of_2(dk)),
        VALUE=tiling.values,
        PRECISION=precision,
        num_warps=tiling.warps,
    )
    return out
