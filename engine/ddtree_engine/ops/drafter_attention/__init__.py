"""Attention of a drafter's block to the target's features and to itself."""

from ddtree_engine.ops.drafter_attention.vectorized import drafter_attention

__all__ = ["drafter_attention"]
