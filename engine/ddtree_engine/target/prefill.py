"""A piece of a prompt: one causal pass over known tokens, which adds them to a row of the cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddtree_engine.cache import Piece, TargetCache
from ddtree_engine.target.attention import causal_mask
from ddtree_engine.target.model import TargetModel
from ddtree_engine.tree_batch import chain_taps


def prefill(
    target: TargetModel,
    tokens: Tensor,
    cache: TargetCache,
    row: int,
    feature_layers: Sequence[int] = (),
) -> tuple[Piece, Tensor | None]:
    """Continue the committed tokens of a row with known ones; `cache.settle` commits them.

    Until then, all that has changed are keys and values behind the committed ones.

    Args:
        target: the model.
        tokens: [1, N] int64.
        cache: has room for them.
        row: of the cache.
        feature_layers: layers whose residual stream the drafter wants.

    Returns:
        What `settle` takes, and features [1, N, F*H] or None.
    """
    device, linear = tokens.device, target.config.linear
    N, start = tokens.shape[1], cache.lengths[row]
    end = start + N
    rope = target.rope(torch.arange(start, end, device=device)[None])
    taps = chain_taps(N, target.conv_kernel, device)[None]
    stream = target.embed(tokens)
    mask = causal_mask(stream, end)
    features = stream.new_empty(1, N, len(feature_layers), stream.shape[-1])
    kept = stream.new_empty(1, N, linear.conv_dim if linear is not None else 0)
    tails = torch.empty_like(cache.tails[:, row])
    states = list[Tensor]()
    full = 0
    for index, layer in enumerate(target.decoder_layers()):
        norm = layer.input_layernorm
        if layer.self_attn is not None:
            keys, values = cache.keys[full, row, :end], cache.values[full, row, :end]
            layer.self_attn.prefill(stream, norm, rope, keys, values, mask)
            full += 1
        elif layer.linear_attn is not None:
            place = len(states)
            tail = cache.tails[place, row : row + 1]
            state = cache.states[place, row : row + 1]
            states.append(layer.linear_attn.prefill(stream, norm, tail, state, taps, kept))
            tails[place] = _last_rows(tail[0], kept[0])
        layer.mlp.add_to(stream, layer.post_attention_layernorm)
        for place, wanted in enumerate(feature_layers):
            if wanted == index:
                features[:, :, place] = stream
    return Piece(tails, states), features.flatten(2) if feature_layers else None


def _last_rows(before: Tensor, added: Tensor) -> Tensor:
    """As many rows as `before` [K-1, C] has, from the end of both together."""
    rows, N = before.shape[0], added.shape[0]
    return added[N - rows :] if rows <= N else torch.cat([before[N:], added])
