"""`draft_trees` in tensors of fixed shape: the level-wise search, then steps to parents."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.draft_trees.result import DraftTrees
from ddtree_engine.ops.tree_build import tree_build
from ddtree_engine.tree import LOG_PROB_FLOOR, SCORE_BITS


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
    """See `naive.draft_trees`."""
    B, L, _ = log_probs.shape
    N, device = budget + 1, anchors.device
    nats = log_probs.double().nan_to_num(nan=LOG_PROB_FLOOR).clamp(LOG_PROB_FLOOR, 0.0)
    scores = torch.round(nats * 2.0**SCORE_BITS).long()
    shape = tree_build(scores, budget, widths)
    node = torch.arange(N, device=device).expand(B, N)
    real = (shape.depths >= 0) & (node <= budgets[:, None])
    parents = shape.parents.where(real, 0)
    depths = shape.depths.where(real, 1)
    level = (depths - 1).clamp(min=0)
    drafted = ids.gather(1, level[:, :, None].expand(B, N, ids.shape[2]))
    tokens = drafted.gather(2, shape.ranks[:, :, None])[:, :, 0].where(real, 0)
    tokens[:, 0] = anchors
    ancestors = torch.zeros(B, N, N, dtype=torch.bool, device=device)
    above = node
    for _ in range(L + 1):
        ancestors.scatter_(2, above.clamp(min=0)[:, :, None], True)
        above = parents.gather(1, above.clamp(min=0)).clamp(min=0)
    taps = []
    above = node
    for _ in range(conv_kernel):
        taps.append(conv_kernel - 1 + above)
        above = torch.where(above > 0, parents.gather(1, above.clamp(min=0)), above - 1)
    return DraftTrees(
        tokens, parents, depths, real.sum(1), ancestors, torch.stack(taps[::-1], dim=2)
    )
