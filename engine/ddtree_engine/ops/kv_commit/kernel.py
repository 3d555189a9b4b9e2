"""`kv_commit` on the GPU: one launch for all layers, a node of one layer a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["requests", "nodes_row"])
def _kv_commit(
    keys,
    values,
    path,
    path_lengths,
    starts,
    key_cache,
    value_cache,
    requests,
    size,
    nodes_row,
    keys_layer,
    keys_batch,
    keys_node,
    values_layer,
    values_batch,
    values_node,
    kc_layer,
    kc_batch,
    kc_row,
    vc_layer,
    vc_batch,
    vc_row,
    SIZE: tl.constexpr,
):
    step = tl.program_id(0)
    layer = (tl.program_id(1) // requests).to(tl.int64)
    b = (tl.program_id(1) % requests).to(tl.int64)
    if step < tl.load(path_lengths + b):
        node = tl.load(path + b * nodes_row + step).to(tl.int64)
        row = tl.load(starts + b).to(tl.int64) + step
        index = tl.arange(0, SIZE)
        some = index < size
        key = tl.load(
            keys + layer * keys_layer + b * keys_batch + node * keys_node + index, mask=some
        )
        value = tl.load(
            values + layer * values_layer + b * values_batch + node * values_node + index, mask=some
        )
        tl.store(key_cache + layer * kc_layer + b * kc_batch + row * kc_row + index, key, mask=some)
        tl.store(
            value_cache + layer * vc_layer + b * vc_batch + row * vc_row + index, value, mask=some
        )


def supports(*tensors: Tensor) -> bool:
    """Whether the kernel takes these strides [L, B, rows, HKV, d]: a row is contiguous."""
    return all(t.stride(4) == 1 and t.stride(3) == t.shape[4] for t in tensors)


def kv_commit(
    keys: Tensor,
    values: Tensor,
    nodes: Tensor,
    path_lengths: Tensor,
    starts: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> None:
    """See `naive.kv_commit`. Keys and values have the dtype of the cache."""
    L, B, _, heads, d = keys.shape
    size = triton.next_power_of_2(heads * d)
    _kv_commit[(nodes.shape[1], L * B)](
        keys,
        values,
        nodes,
        path_lengths,
        starts,
        key_cache,
        value_cache,
        B,
        heads * d,
        nodes.stride(0),
        *keys.stride()[:3],
        *values.stride()[:3],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        SIZE=size,
        num_warps=max(1, min(4, size // 256)),
    )
