"""`choose_nodes` on the GPU without a sort: the best noisy token is tried, then the next best.

The tokens that top-k and top-p leave are the first ones of a ranking, and the one with the highest
score + noise among them is wanted. So take the highest of all: if few enough tokens and little
enough mass rank before it, it is the one. If not, whatever ranks behind it does not stay either,
and the search goes on among those before it. A token falls outside with the probability that the
filters cut off, 5 % at a top-p of 0.95, so one try is what it usually takes, of three passes over
the vocabulary. The mass that top-k leaves needs the k-th score, which is found by its bits, eight
at a time.

A place in the ranking is an integer of 64 bits, the score's bits above and the id's below, as in
`topk_logprob`: no two are equal. A program has a row of logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddtree_engine.memory_plan import SORTED_ROWS
from ddtree_engine.sampling import SamplingTensors
from ddtree_engine.sampling.filters import (
    EXP2_TERMS,
    FRACTION_BITS,
    LEAST_EXPONENT,
    LOG2_E,
    MASS_BITS,
    ROUND,
)

PIECE = 8192
WARPS = 16
NOISE_PIECE = 256

_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)
_LEAST_EXPONENT: tl.constexpr = tl.constexpr(LEAST_EXPONENT)
_ROUND: tl.constexpr = tl.constexpr(ROUND)
_E7, _E6, _E5, _E4, _E3, _E2, _E1, _E0 = (tl.constexpr(term) for term in EXP2_TERMS)
_SCALE: tl.constexpr = tl.constexpr(2.0**FRACTION_BITS)
_SHIFT: tl.constexpr = tl.constexpr(MASS_BITS - FRACTION_BITS)
_LOW: tl.constexpr = tl.constexpr(-(2**63))
_HIGH: tl.constexpr = tl.constexpr(2**63 - 1)
_ID_BITS: tl.constexpr = tl.constexpr(2**32 - 1)
_WORD_STEP: tl.constexpr = tl.constexpr(2.0**-32)


@triton.jit
def _gumbel(word):
    """`ddtree_engine.sampling.gumbel_from_words`."""
    uniform = (word.to(tl.float64) + 0.5) * _WORD_STEP
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit(do_not_specialize=["vocab"])
def _make_noise(starts, seeds, temperatures, noise, vocab, SIZE: tl.constexpr):
    """Noise [B, D, V] of the positions behind each root."""
    step, b = tl.program_id(1), tl.program_id(2)
    if tl.load(temperatures + b) == 0.0:
        return
    block = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    seed = tl.load(seeds + b)
    low, high = (seed & _ID_BITS).to(tl.uint32), ((seed >> 32) & _ID_BITS).to(tl.uint32)
    none = tl.zeros([SIZE], tl.uint32)
    position = none + ((tl.load(starts + b) + step + 1) & _ID_BITS).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(block.to(tl.uint32), position, none, none, low, high)
    noise += (b * tl.num_programs(1) + step).to(tl.int64) * vocab
    token = block * 4
    tl.store(noise + token, _gumbel(w0), mask=token < vocab)
    tl.store(noise + token + 1, _gumbel(w1), mask=token + 1 < vocab)
    tl.store(noise + token + 2, _gumbel(w2), mask=token + 2 < vocab)
    tl.store(noise + token + 3, _gumbel(w3), mask=token + 3 < vocab)


@triton.jit
def _ordered(x):
    """Integers of 32 bits that compare as the floats do."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # + 0.0 makes -0.0 the 0.0 that it equals
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _pack(x, token):
    return (_ordered(x).to(tl.int64) << 32) | (token.to(tl.int64) ^ _ID_BITS)


@triton.jit
def _token_of(packed):
    return (packed & _ID_BITS) ^ _ID_BITS


@triton.jit
def _scores(logits, token, vocab, temperature):
    logit = tl.load(logits + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
    return tl.div_rn(logit, temperature)


@triton.jit
def _masses(score, top):
    """`ddtree_engine.sampling.masses`, bit by bit: launched without fused operations."""
    power = (score - top) * _LOG2_E
    power = tl.where(power > _LEAST_EXPONENT, power, _LEAST_EXPONENT)
    whole = (power + _ROUND) - _ROUND
    rest = power - whole
    fraction = rest * _E7 + _E6
    fraction = fraction * rest + _E5
    fraction = fraction * rest + _E4
    fraction = fraction * rest + _E3
    fraction = fraction * rest + _E2
    fraction = fraction * rest + _E1
    fraction = fraction * rest + _E0
    units = (fraction * _SCALE).to(tl.int64)
    shift = whole.to(tl.int64) + _SHIFT
    return (units << tl.where(shift > 0, shift, 0)) >> tl.where(shift < 0, -shift, 0)


@triton.jit
def _mass_before(logits, vocab, temperature, top, place, SIZE: tl.constexpr):
    """How many tokens rank before a place, and their mass."""
    mass = tl.zeros([SIZE], tl.int64)
    count = tl.zeros([SIZE], tl.int32)
    for start in range(0, vocab, SIZE):
        token = start + tl.arange(0, SIZE)
        score = _scores(logits, token, vocab, temperature)
        before = (_pack(score, token) > place) & (token < vocab)
        mass += tl.where(before, _masses(score, top), 0)
        count += tl.where(before, 1, 0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _last_of(logits, vocab, temperature, k, SIZE: tl.constexpr):
    """The place of the k-th token; k is below the number of tokens."""
    known = tl.zeros((), tl.int64)  # the highest bits of its score, in an order without a sign
    left = k
    tied = tl.zeros((), tl.int32)
    for level in range(4):
        shift = 24 - 8 * level
        counts = tl.zeros([512], tl.int32)
        for start in range(0, vocab, SIZE):
            token = start + tl.arange(0, SIZE)
            order = _ordered(_scores(logits, token, vocab, temperature)).to(tl.int64) + 2147483648
            alike = ((order >> shift >> 8) == known) & (token < vocab)
            counts += tl.histogram(tl.where(alike, (order >> shift) & 255, 256).to(tl.int32), 512)
        slot = tl.arange(0, 512)
        counts = tl.where(slot < 256, counts, 0)
        behind = tl.cumsum(counts, axis=0) - counts
        from_here = tl.sum(counts, axis=0) - behind
        chosen = tl.max(tl.where((from_here >= left) & (slot < 256), slot, -1), axis=0)
        tied = tl.sum(tl.where(slot == chosen, counts, 0), axis=0)
        left -= tl.sum(tl.where(slot == chosen, from_here - counts, 0), axis=0)
        known = (known << 8) | chosen.to(tl.int64)
    place = (known - 2147483648) << 32
    if left < tied:
        # Of tokens with this score the first `left` stay.
        seen = tl.zeros((), tl.int32)
        wanted = tl.zeros((), tl.int64)
        for start in range(0, vocab, SIZE):
            token = start + tl.arange(0, SIZE)
            order = _ordered(_scores(logits, token, vocab, temperature)).to(tl.int64) + 2147483648
            alike = ((order == known) & (token < vocab)).to(tl.int32)
            number = seen + tl.cumsum(alike, axis=0)
            hit = (number == left) & (alike == 1)
            wanted += tl.sum(tl.where(hit, token.to(tl.int64), 0), axis=0)
            seen += tl.sum(alike, axis=0)
        place |= wanted ^ _ID_BITS
    return place


@triton.jit(do_not_specialize=["nodes", "steps", "vocab", "logits_row"])
def _choose(
    logits,
    noise,
    depths,
    temperatures,
    top_ks,
    top_ps,
    chosen,
    nodes,
    steps,
    vocab,
    logits_row,
    FILTERS: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = tl.program_id(0)
    b = row // nodes
    logits += row.to(tl.int64) * logits_row
    noise += (b * steps + tl.load(depths + row)).to(tl.int64) * vocab
    temperature = tl.load(temperatures + b)
    draws = temperature > 0.0
    noisy = tl.where(draws, vocab, 0)  # tokens that have noise
    temperature = tl.where(draws, temperature, 1.0)
    last = tl.full((), _LOW + 1, tl.int64)
    total = tl.zeros((), tl.float64)
    top = tl.zeros((), tl.float32)
    first = tl.full((), _HIGH, tl.int64)
    filtered = False
    share = tl.full((), 1.0, tl.float64)
    if FILTERS:
        k = tl.load(top_ks + b)
        share = tl.load(top_ps + b)
        if draws & (k > 0) & (k < vocab):
            last = _last_of(logits, vocab, temperature, k.to(tl.int32), SIZE)
        filtered = draws & (share < 1.0)
        if filtered:
            best = tl.full([SIZE], _LOW, tl.int64)
            for start in range(0, vocab, SIZE):
                token = start + tl.arange(0, SIZE)
                score = _scores(logits, token, vocab, temperature)
                best = tl.maximum(best, tl.where(token < vocab, _pack(score, token), _LOW))
            first = tl.max(best, axis=0)
            top = _scores(logits, _token_of(first), vocab, temperature)
            _, mass = _mass_before(logits, vocab, temperature, top, last - 1, SIZE)
            total = mass.to(tl.float64)
    found = tl.full((), -1, tl.int64)
    while found < 0:
        best = tl.full([SIZE], _LOW, tl.int64)
        for start in range(0, vocab, SIZE):
            token = start + tl.arange(0, SIZE)
            some = token < vocab
            score = _scores(logits, token, vocab, temperature)
            place = _pack(score, token)
            added = tl.load(noise + token, mask=token < noisy, other=0.0)
            stays = some & (place >= last)
            best = tl.maximum(best, tl.where(stays, _pack(score + added, token), _LOW))
        token = _token_of(tl.max(best, axis=0))
        found = token
        if FILTERS:  # noqa: SIM102 - decided when it is compiled
            if filtered:
                score = _scores(logits, token, vocab, temperature)
                place = _pack(score, token)
                _, before = _mass_before(logits, vocab, temperature, top, place, SIZE)
                if (before.to(tl.float64) >= share * total) & (place != first):
                    last = place + 1
                    found = tl.full((), -1, tl.int64)
    tl.store(chosen + row, found)


def supports(logits: Tensor, *, filters: bool) -> bool:
    """Whether the kernels take these logits, and are faster than a sort.

    A row is one multiprocessor's work, and finding the k-th score is most of it.
    """
    # On an H200 0.45 ms against 1.25 for one row.
    if filters and logits.shape[0] * logits.shape[1] <= SORTED_ROWS:
        return False
    return logits.stride(2) == 1 and logits.stride(0) == logits.shape[1] * logits.stride(1)


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
    B, N, V = logits.shape
    noise = torch.empty(B, depth + 1, V, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(B, N, dtype=torch.int64, device=logits.device)
    blocks = triton.cdiv(V, 4)
    _make_noise[(triton.cdiv(blocks, NOISE_PIECE), depth + 1, B)](
        starts, params.seeds, params.temperatures, noise, V, SIZE=NOISE_PIECE, num_warps=4
    )
    _choose[(B * N,)](
        logits,
        noise,
        depths.contiguous(),
        params.temperatures,
        params.top_ks,
        params.top_ps,
        chosen,
        N,
        depth + 1,
        V,
        logits.stride(1),
        FILTERS=filters,
        SIZE=min(PIECE, triton.next_power_of_2(V)),
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
    return chosen
