"""Choosing tokens: temperature, top-k, top-p, and noise that only depends on seed and position.

A token is drawn by the Gumbel-max rule: the argmax of scores + Gumbel noise has the law
softmax(scores). The noise of a request is a function of (seed, absolute position, token id) alone.
Whichever shape a draft tree has, the target then picks the same token at the same position: every
mode emits the same text for the same request, and each choice is a true sample of the target, since
the trees are functions of earlier tokens only.

At each node of a deterministic tree, sampling from the target and following the matching child is
lossless for any temperature, top-k and top-p, and no other rule accepts more on the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree_engine.errors import RequestError

MIN_TEMPERATURE = 1e-4
"""Lowest temperature above 0: below it float32 scores would drown the noise."""

_WORD = 0xFFFFFFFF
# Philox-4x32: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@dataclass(frozen=True)
class SamplingParams:
    """How one request chooses its tokens.

    Attributes:
        temperature: 0 is greedy (argmax, lowest id on a tie); else `MIN_TEMPERATURE` or more.
        top_k: keep this many most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches this; in (0, 1].
        seed: 64 bits, signed or unsigned; the noise of the request.

    Raises:
        RequestError: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.greedy or MIN_TEMPERATURE <= self.temperature < math.inf):
            raise RequestError(
                f"temperature must be 0, or from {MIN_TEMPERATURE:g} up, got {self.temperature}",
                hint="0 chooses the most probable token each time",
            )
        if self.top_k < 0:
            raise RequestError(
                f"top_k must be 0 or more, got {self.top_k}", hint="0 keeps all tokens"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(
                f"top_p must be above 0 and at most 1, got {self.top_p}", hint="1 keeps all tokens"
            )
        if not -(2**63) <= self.seed < 2**64:
            raise RequestError(f"seed must fit 64 bits, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """Whether each token is the argmax, with no noise."""
        return self.temperature == 0.0


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
    candidates = scores.shape[-1]
    if 0 < params.top_k < candidates:
        candidates = params.top_k
        scores = _keep_top_k(scores, candidates)
    if params.top_p < 1.0:
        scores = _keep_top_p(scores, params.top_p, candidates)
    return scores


def _keep_top_k(scores: Tensor, k: int) -> Tensor:
    threshold = scores.topk(k, dim=-1).values[..., -1:]
    above, tied = scores > threshold, scores == threshold
    room = k - above.sum(-1, keepdim=True)
    keep = above | (tied & (tied.cumsum(-1) <= room))
    return scores.masked_fill(~keep, -math.inf)


def _keep_top_p(scores: Tensor, p: float, candidates: int) -> Tensor:
    """Drop the tokens that come when the mass before them has reached `p`.

    At most `candidates` scores of a row are above -inf; only these are sorted.
    """
    if candidates < scores.shape[-1]:
        ids = scores.topk(candidates, dim=-1).indices.sort(-1).values
        ordered, order = scores.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, order)
    else:
        ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    mass = ordered.double().softmax(-1).cumsum(-1)
    before = mass.roll(1, -1)
    before[..., 0] = 0.0
    kept = ordered.masked_fill(before >= p, -math.inf)
    return torch.full_like(scores, -math.inf).scatter_(-1, ids, kept)


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


def choose_batch(logits: Tensor, positions: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Choose tokens for a batch of requests, each with its own parameters.

    Args:
        logits: [B, N, V], any float type.
        positions: [B, N] int64, as in `choose`.
        params: B of them.

    Returns:
        [B, N] int64 token ids; row b is `choose(logits[b], positions[b], params[b])`.

    Raises:
        ValueError: not one `params` for each request.
    """
    if len(params) != logits.shape[0]:
        raise ValueError(f"{logits.shape[0]} requests but {len(params)} sampling parameters")
    if all(one.greedy for one in params):
        return logits.argmax(-1)
    rows = zip(logits, positions, params, strict=True)
    return torch.stack([choose(*row) for row in rows])


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of B requests where the device can read them.

    Attributes:
        temperatures: [B] float32; 0 is greedy.
        top_ks: [B] int64; 0 keeps all.
        top_ps: [B] float64.
        seeds: [B] int64, the 64 bits of each seed.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    seeds: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> SamplingTensors:
        """Greedy parameters for so many rows."""
        return cls(
            temperatures=torch.zeros(rows, device=device),
            top_ks=torch.zeros(rows, dtype=torch.int64, device=device),
            top_ps=torch.ones(rows, dtype=torch.float64, device=device),
            seeds=torch.zeros(rows, dtype=torch.int64, device=device),
        )

    def set(self, row: int, params: SamplingParams) -> None:
        """Write the parameters of one request."""
        self.temperatures[row] = params.temperature
        self.top_ks[row] = params.top_k
        self.top_ps[row] = params.top_p
        self.seeds[row] = params.seed - (1 << 64) if params.seed >= 1 << 63 else params.seed

    def first(self, rows: int) -> SamplingTensors:
        """The parameters of the first `rows` requests, as views."""
        return SamplingTensors(
            self.temperatures[:rows], self.top_ks[:rows], self.top_ps[:rows], self.seeds[:rows]
        )


def choose_nodes(
    logits: Tensor,
    depths: Tensor,
    starts: Tensor,
    params: SamplingTensors,
    *,
    depth: int,
    filters: bool,
) -> Tensor:
    """Choose a token after every node of a batch of trees: `choose_batch` in fixed shapes.

    Nothing waits for the device, and no shape depends on a number there.

    Args:
        logits: [B, N, V], any float type.
        depths: [B, N] int64 of the nodes.
        starts: [B] int64 position of each root.
        params: of the requests.
        depth: of the deepest node at most.
        filters: whether any request has a top-k or a top-p.

    Returns:
        [B, N] int64 token ids.
    """
    V = logits.shape[-1]
    greedy = params.temperatures == 0.0
    temperatures = params.temperatures.masked_fill(greedy, 1.0)
    scores = logits.float() / temperatures[:, None, None]
    if filters:
        scores = _keep(scores, params)
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


def _keep(scores: Tensor, params: SamplingTensors) -> Tensor:
    """Drop the tokens that top-k, then top-p leave out; see `filter_logits`."""
    V = scores.shape[-1]
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    top_ks = torch.where(params.top_ks > 0, params.top_ks, V)[:, None, None]
    ordered = ordered.masked_fill(torch.arange(V, device=scores.device) >= top_ks, -math.inf)
    mass = ordered.double().softmax(-1).cumsum(-1)
    before = mass.roll(1, -1)
    before[..., 0] = 0.0
    top_ps = params.top_ps[:, None, None]
    ordered = ordered.masked_fill((before >= top_ps) & (top_ps < 1.0), -math.inf)
    return torch.full_like(scores, -math.inf).scatter_(-1, ids, ordered)
