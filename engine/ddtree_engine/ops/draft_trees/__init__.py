"""From a drafter's candidates to the trees of a round, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import on_gpu
from ddtree_engine.ops.draft_trees import vectorized
from ddtree_engine.ops.draft_trees.result import DraftTrees

__all__ = ["DraftTrees", "draft_trees"]


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
    """See `naive.draft_trees`. Nothing waits for the device."""
    tensors = (anchors, log_probs, ids, budgets, widths)
    if on_gpu(*tensors):
        from ddtree_engine.ops.draft_trees import kernel

        if kernel.supports(log_probs, ids, budget):
            with torch.cuda.device(log_probs.device):
                return kernel.draft_trees(*tensors, budget=budget, conv_kernel=conv_kernel)
    return vectorized.draft_trees(*tensors, budget=budget, conv_kernel=conv_kernel)
