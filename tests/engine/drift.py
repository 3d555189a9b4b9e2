"""How far the state of tree rounds is from the state of `ar` at the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ddtree_engine.decoder import Decoder
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Sequence, Speculation
from ddtree_engine.target import TargetModel


@dataclass(frozen=True)
class Drift:
    """Relative distances after so many tokens, the largest of any layer.

    Attributes:
        tokens: committed since the prompt.
        rounds: tree rounds that it took.
        distances: of states, tails, keys and values: ||tree - ar|| / ||ar||.
    """

    tokens: int
    rounds: int
    distances: dict[str, float]


def begin(
    target: TargetModel,
    drafter: DrafterModel,
    prompt: list[int],
    room: int,
    sampling: SamplingParams,
    speculation: Speculation,
) -> tuple[Decoder, Callable[[], Tensor]]:
    """A decoder whose only request is at the end of its prompt, and its round."""
    decoder = Decoder(target, drafter, max_length=room, device_rounds=True)
    assert decoder.pipeline is not None
    sequence = Sequence(prompt, 1, sampling, speculation)
    decoder.start(sequence)
    while not sequence.decoding:
        decoder.prefill(sequence)
    # One shape serves the whole length.
    shape = replace(decoder.round_shape([sequence]), context=decoder.cache.max_length)
    return decoder, decoder.pipeline.prepare(shape)


@torch.inference_mode()
def drift(
    target: TargetModel,
    drafter: DrafterModel,
    prompt: list[int],
    *,
    stops: list[int],
    sampling: SamplingParams,
    budget: int,
    topk: int,
) -> Iterator[Drift]:
    """Decode by trees up to each of `stops` tokens, and by `ar` along the same tokens.

    `ar` is given every token rather than choosing it: in a low precision rounding would tip a
    choice sooner or later, and the states of two different texts say nothing.
    """
    room = len(prompt) + stops[-1] + 64
    speculation = Speculation(Mode.TREE, budget=budget, topk=topk)
    tree, tree_round = begin(target, drafter, prompt, room, sampling, speculation)
    ar, ar_round = begin(target, drafter, prompt, room, sampling, Speculation(Mode.AR))
    known, rounds, followed = [prompt[-1]], 0, 0
    for stop in stops:
        while len(known) <= stop:
            count, sound, *found = tree_round()[0].tolist()
            assert sound
            assert count
            known += found[:count]
            rounds += 1
        tokens = torch.tensor(known, device=ar.device)
        # Both have committed the prompt without its last token, then `known` without its last.
        for token in tokens[followed : len(known) - 1]:
            ar.state.anchors[0] = token
            ar_round()
        followed = len(known) - 1
        length = int(ar.state.lengths[0])
        assert length == int(tree.state.lengths[0]) == len(prompt) - 1 + followed
        yield Drift(followed, rounds, distances(tree, ar, length))


def distances(one: Decoder, other: Decoder, length: int) -> dict[str, float]:
    """The largest relative distance of any layer, for each thing that a cache holds."""
    found = {}
    for name in ("states", "tails", "keys", "values"):
        a, b = getattr(one.cache, name)[:, 0], getattr(other.cache, name)[:, 0]
        if name in ("keys", "values"):
            a, b = a[:, :length], b[:, :length]
        a, b = a.double().flatten(1), b.double().flatten(1)
        found[name] = float(((a - b).norm(dim=1) / b.norm(dim=1)).max())
    return found
