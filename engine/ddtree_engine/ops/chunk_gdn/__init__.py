"""Gated delta rule over whole sequences, causal and differentiable (training and prefill tests).

``naive.py`` is the specification, ``vectorized.py`` the chunked form that training uses.
"""

from ddtree_engine.ops.chunk_gdn.vectorized import chunk_gdn

__all__ = ["chunk_gdn"]
