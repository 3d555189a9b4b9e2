"""Gated delta rule over a tree: a node continues its parent's state, and none is ever written."""

from ddtree_engine.ops.tree_gdn.vectorized import tree_gdn

__all__ = ["tree_gdn"]
