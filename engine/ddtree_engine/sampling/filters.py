"""Which tokens may come: temperature, then top-k, then top-p.

**Masses.** Top-p adds up probabilities. Here they are integers, so that a sum does not depend on
the order of its terms, and a search that never sorts finds what a sort finds. They are made from
scores in float32 by additions, products and roundings alone, each of them rounded as IEEE 754 says:
the same bits on a CPU and on a GPU, which no library's `exp` promises.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ddtree_engine.sampling.params import SamplingParams

MASS_BITS = 40
"""The likeliest token has a mass of 2**40: one of 2**-41 as probable has none."""

LOG2_E = 1.4426950216293335
"""1 / log 2, a float32."""

LEAST_EXPONENT = -64.0
"""Powers of two below this one are 0 in units of a mass, and so far can it be shifted."""

ROUND = 12582912.0
"""1.5 * 2**23: added to a float32 of magnitude below 2**22 and taken away again, it leaves the
nearest integer."""

EXP2_TERMS = tuple(math.log(2.0) ** n / math.factorial(n) for n in range(7, -1, -1))
"""Taylor's terms of 2**x, the highest first: within 1e-8 for x from -1/2 to 1/2."""

FRACTION_BITS = 24
"""Bits of a float32's fraction, all of which go into a mass."""


def filter_logits(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the scores whose softmax is the law of the next token.

    Temperature first, then top-k, then top-p on what top-k left. Tokens of equal score rank by id,
    lowest first, so exactly k tokens stay, and the same ones everywhere.

    Args:
        logits: [..., V], any float type.
        params: with a temperature above 0.

    Returns:
        [..., V] float32: logits / temperature, and -inf for excluded tokens.

    Raises:
        ValueError: greedy parameters, which have no scores.
    """
    if params.greedy:
        raise ValueError("greedy choice has no scores: take the argmax of the logits")
    # A tensor divides alike on every device; a number would be turned into its inverse on a GPU.
    scores = logits.float() / torch.full((), params.temperature, device=logits.device)
    V = scores.shape[-1]
    top_k = params.top_k if 0 < params.top_k < V else V
    if top_k == V and params.top_p == 1.0:
        return scores
    return keep(
        scores,
        torch.tensor(top_k, device=scores.device),
        torch.tensor(params.top_p, dtype=torch.float64, device=scores.device),
    )


def keep(scores: Tensor, top_ks: Tensor, top_ps: Tensor) -> Tensor:
    """Drop the tokens that top-k, then top-p leave out.

    A token goes when the mass of those that rank before it has reached the share `top_ps` of what
    top-k left.

    Args:
        scores: [..., V] float32.
        top_ks: int64 that broadcasts with [...], from 1 to V.
        top_ps: float64 that does; 1 keeps all.

    Returns:
        [..., V] float32 with -inf for those left out.
    """
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[-1], device=scores.device)
    left = rank < top_ks[..., None]
    mass = masses(ordered).where(left, 0)
    before = mass.cumsum(-1) - mass
    total = mass.sum(-1, keepdim=True)
    share = top_ps[..., None]
    stays = left & ((before.double() < share * total.double()) | (share == 1.0) | (rank == 0))
    kept = ordered.masked_fill(~stays, -math.inf)
    return torch.full_like(scores, -math.inf).scatter_(-1, ids, kept)


def masses(scores: Tensor) -> Tensor:
    """Probabilities of tokens in units that make the likeliest 2**`MASS_BITS`, as integers.

    Args:
        scores: [..., V] float32.

    Returns:
        [..., V] int64, exp(score - the row's highest) in units, off by 3e-6 of itself at most.
    """
    power = (scores - scores.amax(-1, keepdim=True)) * LOG2_E
    power = power.clamp(min=LEAST_EXPONENT)
    whole = (power + ROUND) - ROUND
    rest = power - whole
    fraction = torch.full_like(rest, EXP2_TERMS[0])
    for term in EXP2_TERMS[1:]:
        # Two operations: fused into one they would round once.
        fraction = fraction * rest
        fraction = fraction + term
    units = (fraction * 2.0**FRACTION_BITS).long()
    shift = whole.long() + (MASS_BITS - FRACTION_BITS)
    return (units << shift.clamp(min=0)) >> (-shift).clamp(min=0)
