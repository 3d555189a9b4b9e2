"""Choosing tokens: temperature, top-k, top-p, and noise that only depends on seed and position.

A token is drawn by the Gumbel-max rule: the argmax of scores + Gumbel noise has the law
softmax(scores). The noise of a request is a function of (seed, absolute position, token id) alone.
Whichever shape a draft tree has, the target then picks the same token at the same position: every
mode emits the same text for the same request, and each choice is a true sample of the target, since
the trees are functions of earlier tokens only.

At each node of a deterministic tree, sampling from the target and following the matching child is
lossless for any temperature, top-k and top-p, and no other rule accepts more on the same tree.
"""

from ddtree_engine.sampling.choose import choose
from ddtree_engine.sampling.filters import filter_logits, masses
from ddtree_engine.sampling.noise import gumbel_from_words, gumbel_noise, philox4x32
from ddtree_engine.sampling.params import MIN_TEMPERATURE, SamplingParams, SamplingTensors

__all__ = [
    "MIN_TEMPERATURE",
    "SamplingParams",
    "SamplingTensors",
    "choose",
    "filter_logits",
    "gumbel_from_words",
    "gumbel_noise",
    "masses",
    "philox4x32",
]
