"""Best-first draft trees of a batch of requests, in the order that `ddtree_engine.tree` defines.

`naive.tree_build` enumerates every prefix (the specification, for small sizes);
`levelwise.tree_build` needs no heap and no host synchronisation. `ddtree_engine.tree.best_first` is
the same for one request on the CPU. All three agree exactly.
"""

from ddtree_engine.ops.tree_build.levelwise import tree_build
from ddtree_engine.ops.tree_build.shape import TreeShape

__all__ = ["TreeShape", "tree_build"]
