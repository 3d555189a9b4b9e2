"""The specification of `kv_commit`: one row of one layer at a time."""

from __future__ import annotations

from torch import Tensor


def kv_commit(
    keys: Tensor,
    values: Tensor,
    nodes: Tensor,
    path_lengths: Tensor,
    starts: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> None:
    """Append keys and values of the accepted path of each request to its cache, in place.

    Args:
        keys: [L, B, N, HKV, d] of all nodes of each tree, in every layer.
        values: [L, B, N, HKV, d]
        nodes: [B, D] int64, the accepted path.
        path_lengths: [B] int64, nodes of it, from 0 to D; what lies past them is ignored.
        starts: [B] int64, committed tokens of each request: where its path begins in the cache.
        key_cache: [L, B, T, HKV, d], T at least `starts + path_lengths`; modified.
        value_cache: [L, B, T, HKV, d]; modified.
    """
    for layer in range(keys.shape[0]):
        for b in range(keys.shape[1]):
            for t in range(int(path_lengths[b])):
                row, node = int(starts[b]) + t, int(nodes[b, t])
                key_cache[layer, b, row] = keys[layer, b, node]
                value_cache[layer, b, row] = values[layer, b, node]
