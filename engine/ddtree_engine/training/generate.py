"""Continuations by the target of prompts from its corpus: what the drafter learns to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree_engine.target.model import TargetModel
from ddtree_engine.training.stepping import LockstepDecoder


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a share of the rows chooses its tokens.

    Attributes:
        share: part of the rows.
        temperature: 0 is greedy.
        sampled: only this many tokens after the prompt are sampled, then it is greedy; None: all.
    """

    share: float
    temperature: float = 0.0
    sampled: int | None = None


MIX = (
    Decoding(0.5),
    # A sampled start leads the target to contexts that the corpus does not have.
    Decoding(0.3, temperature=1.0, sampled=48),
    Decoding(0.2, temperature=0.8),
)
"""Acceptance is judged on greedy text of unseen modules, and served at other temperatures too."""


@torch.no_grad()
def continue_prompts(
    model: TargetModel,
    prompts: Tensor,
    new_tokens: int,
    mix: Sequence[Decoding] = (Decoding(1.0),),
    seed: int = 0,
) -> Tensor:
    """Continues ``prompts [rows, P]`` by ``new_tokens`` each; returns ``[rows, P + new_tokens]``.

    Rows are given to the entries of ``mix`` in order, by their shares.
    """
    rows, prompt_length = prompts.shape
    device = prompts.device
    decoder = LockstepDecoder(model, rows, prompt_length + new_tokens)
    generator = torch.Generator(device).manual_seed(seed)
    shares = torch.tensor([entry.share for entry in mix]).cumsum(0)
    owner = torch.searchsorted(shares / shares[-1], (torch.arange(rows) + 0.5) / rows)
    temperature = torch.tensor([entry.temperature for entry in mix])[owner].to(device)
    until = torch.tensor([new_tokens if entry.sampled is None else entry.sampled for entry in mix])[
        owner
    ].to(device)
    sampling = any(entry.temperature > 0 for entry in mix)
    tokens = torch.cat([prompts, prompts.new_zeros(rows, new_tokens)], dim=1)
    for index in range(prompt_length + new_tokens - 1):
        hidden = decoder.step(tokens[:, index])
        done = index + 1 - prompt_length
        if done < 0:
            continue
        logits = model.logits(hidden)
        if sampling:
            # The argmax of logits + temperature * Gumbel noise is a sample at that temperature.
            noise = -torch.empty_like(logits).exponential_(generator=generator).log()
            heat = torch.where(done < until, temperature, torch.zeros_like(temperature))
            logits = logits + heat[:, None] * noise
        tokens[:, index + 1] = logits.argmax(-1)
    return tokens


def generate_corpus(
    model: TargetModel,
    stream: Tensor,
    *,
    rows: int,
    batch: int,
    length: int,
    prompt_lengths: Sequence[int],
    seed: int,
) -> Tensor:
    """Sequences of ``length`` tokens that begin with a prompt from ``stream``, ``[rows, length]``.

    Args:
        model: the target.
        stream: ``[N]`` the training corpus; prompts are cut at random places.
        rows: sequences in all.
        batch: sequences at a time.
        length: tokens of a prompt and its continuation.
        prompt_lengths: taken in turn, one a batch.
        seed: of places and samples.

    Returns:
        int32, on the device of ``stream``.
    """
    pieces: list[Tensor] = []
    generator = torch.Generator().manual_seed(seed)
    for number, first in enumerate(range(0, rows, batch)):
        count = min(batch, rows - first)
        prompt_length = prompt_lengths[number % len(prompt_lengths)]
        starts = torch.randint(stream.numel() - prompt_length, (count, 1), generator=generator)
        span = torch.arange(prompt_length)
        prompts = stream[(starts + span).to(stream.device)].long()
        tokens = continue_prompts(
            model, prompts, length - prompt_length, MIX, seed * 1_000_003 + number
        )
        pieces.append(tokens.int())
    return torch.cat(pieces)
