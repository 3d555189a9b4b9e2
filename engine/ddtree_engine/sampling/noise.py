"""Gumbel noise that is a function of seed, position and token alone."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
# Philox-4x32: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int | Tensor, int | Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four output words of Philox-4x32-10.

    Args:
        counter: four int64 tensors of words in [0, 2**32), of shapes that broadcast together.
        key: two words, or tensors of such that broadcast with the counter.

    Returns:
        Four int64 tensors of words in [0, 2**32), each of the broadcast shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # A 32x32-bit product fills 64 bits: int64 wraps, and the shift drags the sign into the high
        # half of the result, which the mask removes. Early rounds stay small by broadcasting.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) ^ (c1 ^ k0)) & _WORD,
            p1 & _WORD,
            ((p0 >> 32) ^ (c3 ^ k1)) & _WORD,
            p0 & _WORD,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def gumbel_noise(seed: int, positions: Tensor, vocab_size: int) -> Tensor:
    """Return the Gumbel noise of a request at some positions.

    Token t at position n takes word t % 4 of Philox-4x32-10 with key = the seed's low and high
    halves and counter = (t // 4, n, 0, 0). The words are the same bits on every device; the float64
    logarithms may differ in the last place, which rounding to float32 hides but for rare cases.

    Args:
        seed: 64 bits, signed or unsigned.
        positions: [P] int64 absolute positions of the tokens being chosen.
        vocab_size: V.

    Returns:
        [P, V] float32 on the device of `positions`.
    """
    blocks = torch.arange((vocab_size + 3) // 4, device=positions.device)[None, :]
    zero = torch.zeros_like(blocks[:, :1])
    words = philox4x32(
        (blocks, positions[:, None], zero, zero), (seed & _WORD, (seed >> 32) & _WORD)
    )
    return gumbel_from_words(torch.stack(words, dim=-1).flatten(1)[:, :vocab_size])


def gumbel_from_words(words: Tensor) -> Tensor:
    """Turn random words in [0, 2**32) into float32 Gumbel noise, all of it finite.

    A word x gives u = (x + 1/2) / 2**32, inside (0, 1), and the noise -log(-log(u)), in float64.
    """
    uniform = words.double().add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().float()
