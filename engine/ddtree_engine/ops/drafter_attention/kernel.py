"""`drafter_attention` on the GPU: split-KV over the context, one more piece for the block."""

from __future__ import annotations

from torch import Tensor

from ddtree_engine.ops import split_kv


def drafter_attention(
    q: Tensor,
    k_context: Tensor,
    v_context: Tensor,
    lengths: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    tiling: split_kv.Tiling | None = None,
) -> Tensor:
    """See `naive.drafter_attention`."""
    return split_kv.attend(
        q,
        k_context,
        v_context,
        lengths,
        k,
        v,
        own=split_kv.Own.EARLIER if causal else split_kv.Own.ALL,
        ancestors=None,
        window=window,
        scale=scale,
        tiling=tiling,
    )
