"""Keys and values of the accepted path into the cache: of the target, and of the drafter."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.kv_commit import vectorized

__all__ = ["kv_commit"]


def kv_commit(
    keys: Tensor,
    values: Tensor,
    nodes: Tensor,
    path_lengths: Tensor,
    starts: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> None:
    """See `naive.kv_commit`. Nothing waits for the device."""
    tensors = (keys, values, nodes, path_lengths, starts, key_cache, value_cache)
    rows = (keys, values, key_cache, value_cache)
    if runs_kernel(*rows) and nodes.stride(1) == 1:
        from ddtree_engine.ops.kv_commit import kernel

        if kernel.supports(*rows):
            with torch.cuda.device(keys.device):
                kernel.kv_commit(*tensors)
            return
    vectorized.kv_commit(*tensors)
