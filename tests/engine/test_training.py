"""Training end to end at a tiny size: every part, interruption and resumption, export."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddtree_engine.config import read_drafter_config, read_target_config
from ddtree_engine.drafter import load_drafter
from ddtree_engine.drafter.model import DrafterModel
from ddtree_engine.errors import EngineError
from ddtree_engine.target import TargetModel, load_target
from ddtree_engine.training import command
from ddtree_engine.training.acceptance import acceptance_lengths
from ddtree_engine.training.batches import Windows
from ddtree_engine.training.blocks import BlockAttention, forward_blocks
from ddtree_engine.training.checkpoint import load_best, load_state, read_facts, save_state
from ddtree_engine.training.configs import SHAPES, drafter_config, target_config, write_config
from ddtree_engine.training.corpus import Corpus, Document
from ddtree_engine.training.drafter import block_embeddings, draft_blocks
from ddtree_engine.training.generate import Decoding, continue_prompts, generate_corpus
from ddtree_engine.training.initialise import initialise
from ddtree_engine.training.loop import Schedule, train
from ddtree_engine.training.optimizer import learning_rate
from ddtree_engine.training.stepping import LockstepDecoder
from ddtree_engine.training.target import load_trained_target

CPU = torch.device("cpu")
VOCAB = 400


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


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


# ---- parts ----


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


def test_blocks_equal_the_drafters_own_training_form(
    target: TargetModel, drafter: DrafterModel
) -> None:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(VOCAB, (2, 70), generator=generator)
    anchors = torch.randint(1, 69, (2, 6), generator=generator)
    _, features = target.forward_sequence(tokens, drafter.config.target_layer_ids)
    assert features is not None
    blocks = block_embeddings(target, drafter.config, tokens.gather(1, anchors))
    ours = forward_blocks(drafter, features, anchors, blocks, BlockAttention())
    torch.testing.assert_close(
        ours, drafter.forward_training(features, anchors, blocks), atol=1e-5, rtol=0
    )


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


# ---- the loop ----


class Line(nn.Module):
    """A model of two parameters, one of them fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(3, 3))
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)


def fit(
    folder: Path,
    *,
    resume: bool = False,
    model: nn.Module | None = None,
    time_limit: float | None = None,
) -> dict[str, Any]:
    line = Line() if model is None else model
    weight = next(p for p in line.parameters() if p.requires_grad)

    def objective(step: int) -> Tensor:
        return ((weight - step - torch.rand(weight.shape)) ** 2).mean()

    schedule = Schedule(steps=9, warmup=2, evaluate_every=4, seed=7, time_limit=time_limit)
    return train(
        line,
        objective,
        lambda final: {"loss": weight.square().mean().item(), "final": float(final)},
        schedule,
        folder,
        tokens_per_step=1,
        about={"what": "line"},
        resume=resume,
    )


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    assert whole["finished"]
    part = fit(tmp_path / "parts", time_limit=0.0)
    assert (part["step"], part["finished"]) == (1, False)
    fit(tmp_path / "parts", resume=True, time_limit=0.0)
    done = fit(tmp_path / "parts", resume=True)
    assert (done["finished"], done["runs"]) == (True, 3)
    for one, other in zip(
        load_state(tmp_path / "whole")[1].items(),
        load_state(tmp_path / "parts")[1].items(),
        strict=True,
    ):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
    assert [h["loss"] for h in whole["history"]] == [h["loss"] for h in done["history"]]
    assert [h["final"] for h in whole["history"]] == [0.0, 0.0, 1.0]


def test_the_best_parameters_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    facts = fit(tmp_path)
    assert facts["best"]["loss"] == min(entry["loss"] for entry in facts["history"])
    best = load_best(tmp_path)
    assert best["slope"].dtype == torch.bfloat16
    assert best["slope"].float().square().mean().item() == pytest.approx(
        facts["best"]["loss"], rel=0.01
    )


def test_steps_are_chosen_from_the_measured_speed_and_kept(tmp_path: Path) -> None:
    line = Line()
    schedule = Schedule(steps=None, seconds=0.2, warmup=2, evaluate_every=10**6)
    facts = train(
        line,
        lambda step: (line.slope - step).square().mean(),
        lambda _: {"loss": 0.0},
        schedule,
        tmp_path,
        tokens_per_step=1,
        about={},
        resume=False,
    )
    assert facts["finished"]
    assert facts["total"] == facts["step"] >= 31
    assert read_facts(tmp_path)["total"] == facts["total"]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    model = Line()
    with pytest.raises(EngineError, match="nan at step 1"):
        train(
            model,
            lambda _: (model.slope * math.nan).sum(),
            lambda _: {"loss": 0.0},
            Schedule(steps=1),
            tmp_path,
            tokens_per_step=1,
            about={},
            resume=False,
        )


def test_states_are_sharded_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree_engine.training.checkpoint.SHARD_BYTES", 64)
    tensors = {f"parameter/{i}": torch.arange(8.0) + i for i in range(5)}
    save_state(tmp_path, {"step": 1}, tensors)
    save_state(tmp_path, {"step": 2}, tensors)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [*(f"state-000002-0{i}.safetensors" for i in range(3)), "state.json"]
    _, loaded = load_state(tmp_path)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    (tmp_path / names[1]).write_bytes(b"cut short")
    with pytest.raises(EngineError, match="state-000002-01"):
        load_state(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(EngineError, match="damaged"):
        read_facts(tmp_path)


def test_resuming_another_model_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, time_limit=0.0)
    with pytest.raises(EngineError, match="another model"):
        fit(tmp_path, resume=True, model=nn.Linear(2, 2, bias=False))
    with pytest.raises(EngineError, match="holds no training state"):
        fit(tmp_path / "nowhere", resume=True)


# ---- the command ----


OPTIONS = {
    "target": "--shape tiny --device cpu --steps 30 --batch 4 --length 32 --dropout 0.1 --warmup 3"
    " --evaluate-every 15",
    "generate": "--rows 24 --rows-at-once 16 --row-length 48",
    "drafter": "--drafter-batch 4 --anchors 6",
}
TARGET = ["target", *OPTIONS["target"].split()]
ALL = ["all", *" ".join(OPTIONS.values()).split()]


def small_library() -> Corpus:
    body = "    total = 0\n    for item in values:\n        total = total + item * 2\n" * 6
    train_docs = tuple(
        Document(f"m{i}.py", f"def f{i}(values):\n{body}    return total\n" * 6) for i in range(40)
    )
    apart = tuple(
        Document(f"h{i}.py", f"def held{i}(values):\n{body}    return total\n" * 4)
        for i in range(8)
    )
    return Corpus(train_docs, apart, {"x.py": "empty"})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of `train all` on a small library."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("run_folder", "export"):
            patch.setattr(f"ddtree_engine.training.{module}.read_corpus", small_library)
        assert command.main([*ALL, "--out", str(root)]) == 0
    return root


@pytest.mark.slow
def test_training_learns(run_folder: Path) -> None:
    for part in ("target", "drafter"):
        facts = read_facts(run_folder / part)
        losses = [entry["train_loss"] for entry in facts["history"]]
        assert facts["finished"]
        assert losses[-1] < losses[0]


@pytest.mark.slow
def test_exported_folders_load_in_the_engine_and_in_transformers(run_folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = run_folder / "export"
    ours = load_target(folder / "target", device=CPU, dtype=torch.float32)
    load_drafter(folder / "drafter", device=CPU, dtype=torch.float32)
    theirs = transformers.Qwen3_5ForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    tokens = torch.randint(4, ours.config.vocab_size, (2, 40))
    with torch.no_grad():
        expected = theirs(tokens).logits
        logits = ours.logits(ours.forward_sequence(tokens)[0])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_resuming_all_leaves_what_is_finished_and_begins_what_is_missing(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("run_folder", "export"):
        monkeypatch.setattr(f"ddtree_engine.training.{module}.read_corpus", small_library)
    shutil.copytree(run_folder / "target", tmp_path / "target")
    before = (tmp_path / "target" / "state.json").read_text()
    assert command.main([*ALL, "--resume", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "target" / "state.json").read_text() == before
    expected, again = (load_best(root / "drafter") for root in (run_folder, tmp_path))
    assert all(torch.equal(expected[name], again[name]) for name in expected)


@pytest.mark.slow
def test_the_card_and_the_prompts(run_folder: Path) -> None:
    folder = run_folder / "export"
    card = (folder / "README.md").read_text()
    facts = read_facts(run_folder / "drafter")
    corpus = json.loads((run_folder / "corpus" / "facts.json").read_text())
    assert corpus["sha256"] in card
    assert f"| linear | {facts['best']['tau_linear']:.2f} | 1.00 |" in card
    assert facts["command"] in card
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == [f"h{i}.held{i}" for i in range(8)]


@pytest.mark.slow
def test_an_interrupted_target_resumes_to_the_same_bits(run_folder: Path, tmp_path: Path) -> None:
    for name in ("corpus", "tokenizer"):
        shutil.copytree(run_folder / name, tmp_path / name)
    arguments = [*TARGET, "--out", str(tmp_path)]
    assert command.main([*arguments, "--time-limit", "0"]) == 0
    assert read_facts(tmp_path / "target")["step"] == 1
    assert command.main([*arguments, "--resume"]) == 0
    expected, resumed = (load_best(root / "target") for root in (run_folder, tmp_path))
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    load_trained_target(tmp_path / "target", CPU)


def test_a_missing_part_is_one_clear_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert command.main(["drafter", "--out", str(tmp_path)]) == 1
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "not a finished part" in record.message
    assert "hint: run `train corpus`" in record.message


@pytest.mark.slow
def test_export_with_another_library_is_refused(
    run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Not patched here: the interpreter's own library is another than the run's.
    assert command.main(["export", "--out", str(run_folder), "--to", str(tmp_path / "to")]) == 1
    assert "is not the one that the run was trained on" in caplog.text
    assert not (tmp_path / "to").exists()
