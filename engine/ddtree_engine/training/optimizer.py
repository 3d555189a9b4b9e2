"""AdamW with decay on the matrices, and a warm-up, stable, decay learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn


def adamw(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW (betas 0.9, 0.95) that decays matrices other than embeddings, and nothing else."""
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in parameters if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in parameters if p.ndim != 2 or "embed" in name]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = parameters[0][1].is_cuda
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8, fused=fused)


def learning_rate(
    step: int, total: int | None, *, peak: float, warmup: int, decay_share: float
) -> float:
    """Learning rate at ``step``: linear warm-up, then ``peak``, then a cosine to 2% of it.

    The decay takes the last ``decay_share`` of ``total`` steps; while the total isn't known yet
    (None), the rate stays at ``peak``.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if total is None:
        return peak
    decay = max(1, min(round(total * decay_share), total - warmup))
    done = (step - (total - decay)) / decay
    if done <= 0:
        return peak
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
