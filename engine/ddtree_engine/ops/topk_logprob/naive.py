"""The specification of `topk_logprob`: a full sort of each row."""

from __future__ import annotations

import torch
from torch import Tensor


def topk_logprob(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each row and their log-probabilities.

    Ties go to the smaller id, so that a tree does not depend on how a device sorts.

    Args:
        logits: [R, V], of any float dtype; -inf is a token that cannot come.
        k: at most V.

    Returns:
        Log-probabilities [R, k], falling, float32 (float64 of float64), and ids [R, k] int64. In a
        row with a NaN all log-probabilities are NaN, and the ids are some tokens.
    """
    dtype = logits.dtype if logits.dtype == torch.float64 else torch.float32
    values, ids = [], []
    for row in logits.to(dtype):
        order = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))[:k]
        values.append(torch.log_softmax(row, dim=0)[order])
        ids.append(order)
    return torch.stack(values), torch.tensor(ids, device=logits.device)
