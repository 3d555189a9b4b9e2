"""Parts of the training: generation, blocks, data order, schedule, acceptance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.drafter.model import DrafterModel
from ddtree_engine.target import TargetModel
from ddtree_engine.training.acceptance import acceptance_lengths
from ddtree_engine.training.batches import Windows
from ddtree_engine.training.blocks import BlockAttention
from ddtree_engine.training.configs import SHAPES, drafter_config, target_config, write_config
from ddtree_engine.training.drafter import block_embeddings, draft_blocks
from ddtree_engine.training.generate import Decoding, continue_prompts, generate_corpus
from ddtree_engine.training.initialise import initialise
from ddtree_engine.training.optimizer import learning_rate
from ddtree_engine.training.stepping import LockstepDecoder

VOCAB = 400


@pytest.fixture
def target(tmp_path: Path) -> TargetModel:
    write_config(tmp_path / "t", target_config(SHAPES["tiny"], VOCAB, (0, 2)))
    model = TargetModel(read_target_config(tmp_path / "t"))
    initialise(model, model.config.num_layers, seed=3)
    return model.eval().requires_grad_(False)


@pytest.fixture
def drafter(tmp_path: Path) -> DrafterModel:
    write_config(tmp_path / "d", drafter_config(SHAPES["tiny"], VOCAB, (0, 2), 3))
    model = DrafterModel(read_drafter_config(tmp_path / "d"))
    initialise(model, model.config.num_layers, seed=4)
    return model


def test_lockstep_decoding_equals_the_whole_sequence(target: TargetModel) -> None:
    tokens = torch.randint(VOCAB, (3, 80), generator=torch.Generator().manual_seed(0))
    hidden, _ = target.forward_sequence(tokens)
    decoder = LockstepDecoder(target, rows=3, max_length=80)
    stepped = torch.stack([decoder.step(tokens[:, i]) for i in range(80)], dim=1)
    torch.testing.assert_close(stepped, hidden, atol=2e-4, rtol=0)
    with pytest.raises(ValueError, match="80 tokens"):
        decoder.step(tokens[:, 0])


def test_greedy_continuation_is_the_argmax_at_every_place(target: TargetModel) -> None:
    prompts = torch.randint(VOCAB, (4, 9), generator=torch.Generator().manual_seed(1))
    tokens = continue_prompts(target, prompts, new_tokens=12)
    assert torch.equal(tokens[:, :9], prompts)
    hidden, _ = target.forward_sequence(tokens)
    logits = target.logits(hidden)[:, 8:-1]
    chosen = logits.gather(-1, tokens[:, 9:, None])[..., 0]
    # The two forms round differently: an argmax may differ only at a tie.
    torch.testing.assert_close(chosen, logits.amax(-1), atol=2e-4, rtol=0)


def test_decodings_get_their_share_of_the_rows(target: TargetModel) -> None:
    prompts = torch.randint(VOCAB, (1, 6), generator=torch.Generator().manual_seed(2)).expand(4, 6)
    mix = [
        Decoding(0.5),
        Decoding(0.25, temperature=5.0),
        Decoding(0.25, temperature=5.0, sampled=2),
    ]
    tokens = continue_prompts(target, prompts, 10, mix, seed=1)
    assert torch.equal(tokens[0], tokens[1])
    assert not torch.equal(tokens[0], tokens[2])
    assert torch.equal(tokens, continue_prompts(target, prompts, 10, mix, seed=1))
    assert not torch.equal(tokens[2], continue_prompts(target, prompts, 10, mix, seed=2)[2])
    greedy_tail = continue_prompts(target, tokens[3:, :8], 8)
    assert torch.equal(tokens[3], greedy_tail[0])


def test_generated_sequences_begin_with_the_corpus(target: TargetModel) -> None:
    stream = torch.arange(VOCAB, dtype=torch.int32)
    rows = generate_corpus(
        target, stream, rows=7, batch=3, length=20, prompt_lengths=[5, 8], seed=0
    )
    assert rows.shape == (7, 20)
    for row, length in zip(rows, [5, 5, 5, 8, 8, 8, 5], strict=True):
        assert torch.equal(row[:length], torch.arange(int(row[0]), int(row[0]) + length).int())


def test_slot_zero_of_a_block_is_the_anchor(target: TargetModel, drafter: DrafterModel) -> None:
    blocks = block_embeddings(target, drafter.config, torch.tensor([[7, 9]]))
    embedding = target.embed_tokens.weight
    assert torch.equal(blocks[0, 1, 0], embedding[9])
    assert torch.equal(blocks[0, 1, 1:], embedding[3].expand(7, -1))


def test_labels_are_the_tokens_after_the_anchor(target: TargetModel, drafter: DrafterModel) -> None:
    tokens = torch.arange(20)[None]
    places = torch.tensor([[4, 16]])
    _, labels, valid = draft_blocks(target, drafter, tokens, places, BlockAttention())
    assert labels[0, 0].tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert labels[0, 1][valid[0, 1]].tolist() == [17, 18, 19]


def test_windows_cover_an_epoch_once_and_depend_on_the_step_alone() -> None:
    stream = torch.arange(1000)
    windows = Windows(stream, batch=4, length=10, seed=1)
    epoch = torch.cat([windows.at(step) for step in range(windows.steps_per_epoch)])
    assert epoch.unique().numel() == epoch.numel()
    assert torch.equal(epoch - epoch[:, :1], torch.arange(10).expand_as(epoch))
    later = Windows(stream, batch=4, length=10, seed=1).at(windows.steps_per_epoch + 2)
    assert torch.equal(later, windows.at(windows.steps_per_epoch + 2))
    assert not torch.equal(windows.at(0), windows.at(windows.steps_per_epoch))
    with pytest.raises(ValueError, match="fewer"):
        Windows(stream[:30], batch=4, length=10, seed=1)


def test_learning_rate_warms_up_stays_and_decays() -> None:
    rates = [learning_rate(step, 100, peak=1.0, warmup=10, decay_share=0.4) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:60] == [1.0] * 51
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert 0.02 < rates[99] < 0.03
    assert learning_rate(10**6, None, peak=1.0, warmup=10, decay_share=0.4) == 1.0


def test_acceptance_of_a_drafter_that_knows_some_of_the_text() -> None:
    text = np.array([[9, 9, 1, 2, 3, 4, 5, 6, 7]])
    log_probs = np.log(np.full((1, 7, 2, 2), 0.5) * [0.9, 0.1])
    candidates = np.tile(np.array([100, 101]), (1, 7, 2, 1))
    candidates[0, 0, :, 0] = [1, 2]  # at the first anchor both drafts are right
    candidates[0, 3, :, 1] = [4, 5]  # at the token 3 both second choices
    found = acceptance_lengths(text, 1, log_probs, candidates, budgets=(1, 6))
    # linear: 1 2 +3 | 4 | 5 | 6 | 7      the tree of six: 1 2 +3 | 4 5 +6 | 7
    assert found["tau_linear"] == pytest.approx(7 / 5)
    assert found["tau_tree6"] == pytest.approx(7 / 3)
    # One node: the first draft alone, 1 +2, then a token a round.
    assert found["tau_tree1"] == pytest.approx(7 / 6)
