"""The specification of `ancestor_bits`: one bit after the other."""

from __future__ import annotations

import torch
from torch import Tensor

WORDS = 4
WORD_BITS = 32
MAX_NODES = 1 + WORDS * WORD_BITS
"""The root needs no bit: it is an ancestor of every node."""


def ancestor_bits(ancestors: Tensor) -> Tensor:
    """The ancestors of each node, a bit each.

    Args:
        ancestors: [B, N, N] bool, [i, j] true where j is i or an ancestor of i; at most 129 nodes.

    Returns:
        [B, N, 4] int32: bit t of word w of node i says whether it sees node 1 + 32 w + t. The last
        bit of a word is its sign.
    """
    B, N, _ = ancestors.shape
    bits = torch.zeros(B, N, WORDS, dtype=torch.int64)
    for b in range(B):
        for i in range(N):
            for j in range(1, N):
                if bool(ancestors[b, i, j]):
                    word, bit = divmod(j - 1, WORD_BITS)
                    bits[b, i, word] |= 1 << bit
    return bits.to(torch.int32)
