"""Gated delta rule over whole sequences, causal: prompts and training.

``naive.py`` is the specification, ``vectorized.py`` the chunked form, which is differentiable, and
``library.py`` the same by kernels of flash-linear-attention.
"""

from __future__ import annotations

from torch import Tensor

from ddtree_engine.ops.chunk_gdn import vectorized
from ddtree_engine.ops.device import runs_kernel

__all__ = ["chunk_gdn"]


def chunk_gdn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """See `vectorized.chunk_gdn`; from half precision on a GPU, the outputs may be in `v`'s."""
    # In float32 the library's products are TF32, which is less than what is asked for there.
    if v.element_size() == 2 and runs_kernel(q, k, v, g, beta, initial_state):
        from ddtree_engine.ops.chunk_gdn import library

        found = library.chunk_gdn(q, k, v, g, beta, initial_state)
        if found is not None:
            return found
    return vectorized.chunk_gdn(q, k, v, g, beta, initial_state, chunk_size)
