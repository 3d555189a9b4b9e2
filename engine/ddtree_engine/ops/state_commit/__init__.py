"""Replay of the accepted path into the committed recurrent state."""

from ddtree_engine.ops.state_commit.vectorized import state_commit

__all__ = ["state_commit"]
