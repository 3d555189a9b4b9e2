"""`tree_attention` on the GPU: split-KV over the prefix, one more piece for the tree."""

from __future__ import annotations

from torch import Tensor

from ddtree_engine.ops import split_kv


def tree_attention(
    q: Tensor,
    k_prefix: Tensor,
    v_prefix: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    ancestors: Tensor,
    scale: float,
    gate: Tensor | None = None,
    *,
    row_scale: Tensor | None = None,
    tiling: split_kv.Tiling | None = None,
) -> Tensor:
    """See `naive.tree_attention`. A non-finite node reaches its descendants and no one else."""
    return split_kv.attend(
        q,
        k_prefix,
        v_prefix,
        lengths,
        k,
        v,
        own=split_kv.Own.ANCESTORS,
        ancestors=ancestors,
        window=None,
        scale=scale,
        gate=gate,
        row_scale=row_scale,
        tiling=tiling,
    )
