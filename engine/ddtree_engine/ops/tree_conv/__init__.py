"""Causal convolution whose taps are a node's ancestors."""

from ddtree_engine.ops.tree_conv.vectorized import tree_conv

__all__ = ["tree_conv"]
