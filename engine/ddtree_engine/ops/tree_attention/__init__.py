"""Attention of tree nodes to the committed prefix and to their own ancestors."""

from ddtree_engine.ops.tree_attention.vectorized import tree_attention

__all__ = ["tree_attention"]
