"""The specification of `draft_trees`: the heap's tree of each request, then walks to the root."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.draft_trees.result import DraftTrees
from ddtree_engine.tree import LOG_PROB_FLOOR, best_first, fixed_point


def draft_trees(
    anchors: Tensor,
    log_probs: Tensor,
    ids: Tensor,
    budgets: Tensor,
    widths: Tensor,
    *,
    budget: int,
    conv_kernel: int,
) -> DraftTrees:
    """Build the best-first tree of each request, in the order of `ddtree_engine.tree`.

    A chain is a tree of one candidate a depth, and a lone anchor one of budget 0, so requests of
    every mode go together.

    Args:
        anchors: [B] int64, tokens of the roots.
        log_probs: [B, L, K] of the candidates of each depth, falling along K; L at most
            `ddtree_engine.tree.MAX_DEPTH`. NaN counts as the least that there is.
        ids: [B, L, K] int64, their tokens.
        budgets: [B] int64, nodes of each tree besides the root, from 0 to
        budget: which sets the size of the result, N = budget + 1.
        widths: [B] int64, candidates a depth that each request looks at, from 1 to K.
        conv_kernel: taps of the target's convolution.
    """
    B = len(anchors)
    N, K = budget + 1, conv_kernel
    scores = fixed_point(log_probs.nan_to_num(nan=LOG_PROB_FLOOR).numpy()).tolist()
    tokens = torch.zeros(B, N, dtype=torch.int64)
    parents, depths, sizes = torch.zeros_like(tokens), torch.ones_like(tokens), torch.empty(B)
    ancestors = torch.zeros(B, N, N, dtype=torch.bool)
    taps = torch.empty(B, N, K, dtype=torch.int64)
    for b in range(B):
        width = int(widths[b])
        tree = best_first(
            int(anchors[b]),
            [row[:width] for row in scores[b]],
            [row[:width] for row in ids[b].tolist()],
            int(budgets[b]),
        )
        size = len(tree.tokens)
        tokens[b, :size] = torch.tensor(tree.tokens)
        parents[b, :size] = torch.tensor(tree.parents)
        depths[b, :size] = torch.tensor(tree.depths)
        sizes[b] = size
        for i in range(N):
            above = i
            for tap in reversed(range(K)):
                # Past the root the walk goes on through the committed inputs, newest first.
                taps[b, i, tap] = K - 1 + above
                above = int(parents[b, above]) if above > 0 else above - 1
            above = i
            while above >= 0:
                ancestors[b, i, above] = True
                above = int(parents[b, above])
    return DraftTrees(tokens, parents, depths, sizes.long(), ancestors, taps)
