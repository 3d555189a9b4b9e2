"""`topk_logprob` on the GPU: each logit is read once, and no full log-softmax is written.

A program takes a piece of a row's vocabulary and leaves its largest logit, the sum of its
exponentials and its k best tokens; a second kernel merges the pieces of a row. A logit and its id
are packed into one integer of 64 bits that compares as (logit, then smaller id first), so a maximum
is a best token and no two are equal.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 2048
MAX_K = 64
MAX_MERGED = 16384

_LOW: tl.constexpr = tl.constexpr(-(2**63))
_ID_BITS: tl.constexpr = tl.constexpr(2**32 - 1)


@triton.jit
def _pack(logit, token):
    """Integers that compare as the logits do, and among equals the other way round as the ids."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)  # + 0.0 makes -0.0 the 0.0 that it equals
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (token.to(tl.int64) ^ _ID_BITS)


@triton.jit
def _unpack(packed):
    ordered = (packed >> 32).to(tl.int32)
    bits = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    return bits.to(tl.float32, bitcast=True), (packed & _ID_BITS) ^ _ID_BITS


@triton.jit
def _best_of_piece(
    logits, largest, total, best, vocab, logits_row, K: tl.constexpr, SIZE: tl.constexpr
):
    row, piece, pieces = tl.program_id(1), tl.program_id(0), tl.num_programs(0)
    token = piece * SIZE + tl.arange(0, SIZE)
    some = token < vocab
    logit = tl.load(
        logits + row.to(tl.int64) * logits_row + token, mask=some, other=float("-inf")
    ).to(tl.float32)
    top = tl.max(logit, axis=0)
    origin = tl.where(top == float("-inf"), 0.0, top)
    at = row * pieces + piece
    tl.store(largest + at, top)
    tl.store(total + at, tl.sum(tl.exp(logit - origin), axis=0))
    packed = tl.where(some, _pack(logit, token), _LOW)
    for place in range(K):
        winner = tl.max(packed, axis=0)
        tl.store(best + at * K + place, winner)
        packed = tl.where(packed == winner, _LOW, packed)


@triton.jit
def _merge(
    largest,
    total,
    best,
    log_probs,
    ids,
    pieces,
    K: tl.constexpr,
    PIECES: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    row = tl.program_id(0)
    piece = tl.arange(0, PIECES)
    some = piece < pieces
    top = tl.load(largest + row * pieces + piece, mask=some, other=float("-inf"))
    part = tl.load(total + row * pieces + piece, mask=some, other=0.0)
    origin = tl.max(top, axis=0)
    log_sum = origin + tl.log(tl.sum(part * tl.exp(top - origin), axis=0))
    candidate = tl.arange(0, CANDIDATES)
    packed = tl.load(best + row * pieces * K + candidate, mask=candidate < pieces * K, other=_LOW)
    for place in range(K):
        winner = tl.max(packed, axis=0)
        logit, token = _unpack(winner)
        tl.store(log_probs + row * K + place, logit - log_sum)
        tl.store(ids + row * K + place, token)
        packed = tl.where(packed == winner, _LOW, packed)


def supports(logits: Tensor, k: int) -> bool:
    """Whether the kernel takes this many tokens of this vocabulary."""
    pieces = triton.cdiv(logits.shape[1], PIECE)
    return k <= MAX_K and pieces * k <= MAX_MERGED and logits.stride(1) == 1


def topk_logprob(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `naive.topk_logprob`."""
    R, V = logits.shape
    pieces = triton.cdiv(V, PIECE)
    device = logits.device
    largest = torch.empty(R, pieces, dtype=torch.float32, device=device)
    total = torch.empty_like(largest)
    best = torch.empty(R, pieces, k, dtype=torch.int64, device=device)
    log_probs = torch.empty(R, k, dtype=torch.float32, device=device)
    ids = torch.empty(R, k, dtype=torch.int64, device=device)
    _best_of_piece[(pieces, R)](
        logits, largest, total, best, V, logits.stride(0), K=k, SIZE=PIECE, num_warps=4
    )
    _merge[(R,)](
        largest,
        total,
        best,
        log_probs,
        ids,
        pieces,
        K=k,
        PIECES=triton.next_power_of_2(pieces),
        CANDIDATES=triton.next_power_of_2(pieces * k),
        num_warps=4,
    )
    return log_probs, ids
