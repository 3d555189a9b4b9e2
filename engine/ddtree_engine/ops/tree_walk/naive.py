"""The specification of `tree_walk`: step from a node to the child that the target chose."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.tree_walk.result import Walk


def tree_walk(
    choices: Tensor, tokens: Tensor, parents: Tensor, sizes: Tensor, *, depth: int
) -> Walk:
    """Follow the target's choices down each tree, as `ddtree_engine.tree.walk` does.

    Args:
        choices: [B, N] int64, the token that the target picks after each node.
        tokens: [B, N] int64, tokens of the nodes; those of siblings differ.
        parents: [B, N] int64, -1 at node 0, the root; a parent comes before its children.
        sizes: [B] int64, nodes of each tree; from there on nodes are padding.
        depth: of the deepest tree at most: longer paths are cut.
    """
    B, N = tokens.shape
    nodes = torch.zeros(B, depth + 1, dtype=torch.int64)
    lengths = torch.ones(B, dtype=torch.int64)
    bonus = torch.empty(B, dtype=torch.int64)
    for b in range(B):
        node = 0
        for step in range(1, depth + 1):
            children = [
                i
                for i in range(1, min(N, int(sizes[b])))
                if parents[b, i] == node and tokens[b, i] == choices[b, node]
            ]
            if not children:
                break
            node = children[0]
            nodes[b, step] = node
            lengths[b] += 1
        bonus[b] = choices[b, node]
    return Walk(nodes, lengths, bonus)
