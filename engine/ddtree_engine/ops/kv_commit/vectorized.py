"""`kv_commit` as one gather and one scatter; rows beside the path are written as they are."""

from __future__ import annotations

import torch
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
    """See `naive.kv_commit`. A path has room in the cache: D is at most T."""
    T, D = key_cache.shape[2], nodes.shape[1]
    request = torch.arange(len(starts), device=starts.device)[:, None]
    # D rows of the cache that hold the path: all distinct, so that no write undoes another, though
    # the cache may end before D rows after the start do.
    row = starts.clamp(max=T - D)[:, None] + torch.arange(D, device=starts.device)
    step = row - starts[:, None]
    taken = ((step >= 0) & (step < path_lengths[:, None]))[..., None, None]
    node = nodes.gather(1, step.clamp(0, D - 1))
    for source, cache in ((keys, key_cache), (values, value_cache)):
        cache[:, request, row] = torch.where(
            taken, source[:, request, node], cache[:, request, row]
        )
