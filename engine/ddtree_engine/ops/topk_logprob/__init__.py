"""The likeliest tokens of each row of logits, with their log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.ops.device import runs_kernel
from ddtree_engine.ops.topk_logprob import vectorized

__all__ = ["topk_logprob"]


def topk_logprob(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `naive.topk_logprob`."""
    if runs_kernel(logits):
        from ddtree_engine.ops.topk_logprob import kernel

        if kernel.supports(logits, k):
            with torch.cuda.device(logits.device):
                return kernel.topk_logprob(logits, k)
    return vectorized.topk_logprob(logits, k)
