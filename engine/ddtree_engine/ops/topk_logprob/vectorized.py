"""`topk_logprob` with PyTorch's `topk`, over keys that have no ties."""

from __future__ import annotations

import torch
from torch import Tensor


def topk_logprob(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `naive.topk_logprob`."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    values, ids = logits.topk(k, dim=-1)
    # `topk` breaks ties as it likes. Whether that can matter shows at the edge; where it can, a
    # stable sort decides. On a GPU the question itself would wait for the device.
    tied = (logits == values[:, -1:]).sum(-1) + (logits > values[:, -1:]).sum(-1) != k
    if logits.is_cuda or bool(tied.any()):
        values, ids = (t[:, :k] for t in logits.sort(dim=-1, descending=True, stable=True))
    else:
        # The right tokens, ties within them perhaps in the wrong order.
        ids = ids.sort(dim=-1).values
        values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(1, order)
    return values - logits.logsumexp(dim=-1, keepdim=True), ids
