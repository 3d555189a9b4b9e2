"""`tree_walk` as a table of chosen children, then one gather a step."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.tree_walk.result import Walk


def tree_walk(
    choices: Tensor, tokens: Tensor, parents: Tensor, sizes: Tensor, *, depth: int
) -> Walk:
    """See `naive.tree_walk`."""
    B, N = tokens.shape
    index = torch.arange(N, device=tokens.device).expand(B, N)
    above = parents.clamp(min=0)
    chosen = (tokens == choices.gather(1, above)) & (index > 0) & (index < sizes[:, None])
    # Row N takes what leads nowhere; the root is nobody's child, so 0 says that there is none.
    child = index.new_zeros(B, N + 1).scatter_(1, above.where(chosen, N), index)
    node = index.new_zeros(B, 1)
    going = torch.ones_like(node, dtype=torch.bool)
    path = [node]
    lengths = torch.ones_like(node)
    for _ in range(depth):
        following = child.gather(1, node)
        going = going & (following > 0)
        path.append(following.where(going, 0))
        node = following.where(going, node)
        lengths = lengths + going
    return Walk(torch.cat(path, dim=1), lengths[:, 0], choices.gather(1, node)[:, 0])
