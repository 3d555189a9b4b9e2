"""`choose_nodes` in tensors of fixed shape: noise of every depth, and a sort of every row."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.sampling import SamplingTensors, gumbel_from_words, philox4x32
from ddtree_engine.sampling.filters import keep

_WORD = 0xFFFFFFFF


def choose_nodes(
    logits: Tensor,
    depths: Tensor,
    starts: Tensor,
    params: SamplingTensors,
    *,
    depth: int,
    filters: bool,
) -> Tensor:
    """See `naive.choose_nodes`."""
    V = logits.shape[-1]
    greedy = params.temperatures == 0.0
    temperatures = params.temperatures.masked_fill(greedy, 1.0)
    scores = logits.float() / temperatures[:, None, None]
    if filters:
        top_ks = torch.where(params.top_ks > 0, params.top_ks, V)
        scores = keep(scores, top_ks[:, None], params.top_ps[:, None])
    steps = torch.arange(1, depth + 2, device=logits.device)
    positions = (starts[:, None] + steps)[:, :, None]
    blocks = torch.arange((V + 3) // 4, device=logits.device)
    zero = torch.zeros_like(positions)
    seeds = params.seeds[:, None, None]
    words = philox4x32((blocks, positions, zero, zero), (seeds & _WORD, (seeds >> 32) & _WORD))
    noise = gumbel_from_words(torch.stack(words, dim=-1).flatten(2)[..., :V])
    request = torch.arange(len(logits), device=logits.device)[:, None]
    drawn = (scores + noise[request, depths]).argmax(-1)
    return torch.where(greedy[:, None], logits.argmax(-1), drawn)
