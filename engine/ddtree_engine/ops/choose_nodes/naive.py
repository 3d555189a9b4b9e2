"""The specification of `choose_nodes`: each request with its own parameters, node by node."""

from __future__ import annotations

import torch
from torch import Tensor

from ddtree_engine.sampling import SamplingParams, SamplingTensors, choose


def choose_nodes(
    logits: Tensor,
    depths: Tensor,
    starts: Tensor,
    params: SamplingTensors,
    *,
    depth: int,
    filters: bool,
) -> Tensor:
    """Choose a token after every node of a batch of trees; see `ddtree_engine.sampling`.

    Args:
        logits: [B, N, V], any float type.
        depths: [B, N] int64 of the nodes.
        starts: [B] int64 position of each root.
        params: of the requests.
        depth: of the deepest node at most.
        filters: false where no request has a top-k or a top-p, which then are not looked at.

    Returns:
        [B, N] int64 token ids: of greedy requests the argmax, the lowest id on a tie. After a row
        of logits with a NaN, some token.
    """
    assert int(depths.max()) <= depth
    chosen = []
    for b, start in enumerate(starts.tolist()):
        one = SamplingParams(
            temperature=float(params.temperatures[b]),
            top_k=int(params.top_ks[b]) if filters else 0,
            top_p=float(params.top_ps[b]) if filters else 1.0,
            seed=int(params.seeds[b]),
        )
        positions = start + depths[b] + 1
        chosen.append(
            torch.stack(
                [
                    choose(row, position, one)
                    for row, position in zip(logits[b], positions, strict=True)
                ]
            )
        )
    return torch.stack(chosen)
