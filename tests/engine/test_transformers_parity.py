"""The target against `transformers`, code that this project did not write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from ddtree_engine.cache import Paths, TargetCache
from ddtree_engine.target import TargetModel, Verification, load_target, prefill
from ddtree_engine.tree_batch import TreeBatch

CPU = torch.device("cpu")
TOLERANCE = 1e-4

HYBRID = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "max_position_embeddings": 256,
}
DENSE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def randomize(model: torch.nn.Module) -> None:
    """Spread every parameter, so that no norm is at 1 and no gate is at its initial value."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


@pytest.fixture(params=["hybrid", "hybrid-tied", "dense"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[torch.nn.Module, TargetModel]:
    if request.param == "dense":
        theirs = Qwen3ForCausalLM(Qwen3Config(**DENSE, tie_word_embeddings=False))
    else:
        tied = request.param.endswith("tied")
        theirs = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**HYBRID, tie_word_embeddings=tied))
    randomize(theirs)
    theirs = theirs.eval()
    theirs.save_pretrained(tmp_path)
    return theirs, load_target(tmp_path, device=CPU, dtype=torch.float32)


@torch.no_grad()
def test_sequence_logits(pair: tuple[torch.nn.Module, TargetModel]) -> None:
    theirs, ours = pair
    tokens = torch.randint(0, 97, (2, 150), generator=torch.Generator().manual_seed(1))
    hidden, _ = ours.forward_sequence(tokens)
    torch.testing.assert_close(ours.logits(hidden), theirs(tokens).logits, atol=TOLERANCE, rtol=0)


def commit_all(model: TargetModel, cache: TargetCache, found: Verification) -> None:
    """Commit every node of a chain in each row."""
    B, N, _ = found.hidden.shape
    paths = Paths.of([list(range(N))] * B, CPU)
    starts = torch.tensor(cache.lengths)
    cache.commit(found.stash, paths, slice(0, B), starts, model.filters)
    for row in range(B):
        cache.advance(row, N)


@torch.no_grad()
def test_chunked_prefill_and_stepwise_decode(pair: tuple[torch.nn.Module, TargetModel]) -> None:
    theirs, ours = pair
    tokens = torch.randint(0, 97, (2, 60), generator=torch.Generator().manual_seed(2))
    expected = theirs(tokens).logits
    cache = TargetCache(ours.config, rows=2, max_length=64, dtype=torch.float32, device=CPU)
    rows, at = slice(0, 2), 0
    for size in (20, 17, *([1] * 23)):
        batch = TreeBatch.chain(tokens[:, at : at + size], conv_kernel=ours.conv_kernel)
        found = ours.verify(batch, cache, rows)
        torch.testing.assert_close(
            ours.logits(found.hidden), expected[:, at : at + size], atol=TOLERANCE, rtol=0
        )
        commit_all(ours, cache, found)
        at += size


@pytest.mark.parametrize("pieces", [[1, 2, 60, 3, 65], [131], [128, 3], [2, 1, 128]], ids=str)
@torch.no_grad()
def test_prefill_in_pieces(pair: tuple[torch.nn.Module, TargetModel], pieces: list[int]) -> None:
    """What comes after the prompt, and the residual streams that a drafter is given of it."""
    theirs, ours = pair
    tokens = torch.randint(0, 97, (1, 150), generator=torch.Generator().manual_seed(4))
    expected = theirs(tokens, output_hidden_states=True)
    cache = TargetCache(ours.config, rows=1, max_length=150, dtype=torch.float32, device=CPU)
    parts = []
    for part in torch.split(tokens[:, :131], pieces, dim=1):
        piece, features = prefill(ours, part, cache, 0, (0, 1))
        cache.settle(piece, 0)
        cache.advance(0, part.shape[1])
        assert features is not None
        parts.append(features)
    streams = torch.cat(expected.hidden_states[1:3], dim=-1)[:, :131]
    torch.testing.assert_close(torch.cat(parts, dim=1), streams, atol=TOLERANCE, rtol=0)
    batch = TreeBatch.chain(tokens[:, 131:], conv_kernel=ours.conv_kernel)
    found = ours.verify(batch, cache, slice(0, 1))
    torch.testing.assert_close(
        ours.logits(found.hidden), expected.logits[:, 131:], atol=TOLERANCE, rtol=0
    )


@torch.no_grad()
def test_stepwise_decode_against_their_cache(pair: tuple[torch.nn.Module, TargetModel]) -> None:
    theirs, ours = pair
    tokens = torch.randint(0, 97, (1, 40), generator=torch.Generator().manual_seed(3))
    out = theirs(tokens[:, :25], use_cache=True)
    cache = TargetCache(ours.config, rows=1, max_length=64, dtype=torch.float32, device=CPU)
    rows = slice(0, 1)
    batch = TreeBatch.chain(tokens[:, :25], conv_kernel=ours.conv_kernel)
    found = ours.verify(batch, cache, rows)
    commit_all(ours, cache, found)
    for at in range(25, 40):
        step = tokens[:, at : at + 1]
        out = theirs(step, cache=out.past_key_values, use_cache=True)
        found = ours.verify(TreeBatch.chain(step, conv_kernel=ours.conv_kernel), cache, rows)
        torch.testing.assert_close(ours.logits(found.hidden), out.logits, atol=TOLERANCE, rtol=0)
        commit_all(ours, cache, found)
