"""The token after each node of one request: the specification of all that chooses tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.sampling.filters import filter_logits
from ddtree_engine.sampling.noise import gumbel_noise
from ddtree_engine.sampling.params import SamplingParams


def choose(logits: Tensor, positions: Tensor, params: SamplingParams) -> Tensor:
    """Choose one token for each row of logits.

    Args:
        logits: [..., V], any float type.
        positions: [...] int64 absolute position of the token being chosen (one after the node whose
            logits these are). Noise is computed once for each distinct position.
        params: of the request that all rows belong to.

    Returns:
        [...] int64 token ids.
    """
    if params.greedy:
        return logits.argmax(-1)
    scores = filter_logits(logits, params)
    distinct, which = torch.unique(positions, return_inverse=True)
    noise = gumbel_noise(params.seed, distinct, logits.shape[-1])
    return (scores + noise[which]).argmax(-1)
