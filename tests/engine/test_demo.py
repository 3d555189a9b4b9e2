"""The bundled models: size, arithmetic, and the acceptance that their training had to reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5ForCausalLM

from ddtree_engine import training
from ddtree_engine.comparison import Divergence, ModeResult, compare
from ddtree_engine.engine import DEMO, Engine, load_engine
from ddtree_engine.sequence import Mode, Speculation

AR = Speculation(Mode.AR)
LINEAR = Speculation(Mode.LINEAR)
SHADOW = Speculation(Mode.SHADOW)
TREE_16 = Speculation(Mode.TREE, 16)
TREE_64 = Speculation(Mode.TREE, 64)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    lines = (DEMO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [engine.tokenizer.encode(json.loads(line)["prompt"]) for line in lines]


def test_both_models_and_their_files_fit_in_12_mib() -> None:
    assert sum(file.stat().st_size for file in DEMO.rglob("*") if file.is_file()) <= 12 * 2**20


def test_every_prompt_is_from_a_held_out_module() -> None:
    text = (Path(training.__file__).parent / "held_out.txt").read_text(encoding="utf-8")
    held_out = {line.split("#")[0].strip() for line in text.splitlines()}
    lines = (DEMO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    modules = [json.loads(line)["module"] for line in lines]
    assert len(modules) >= 20
    assert set(modules) <= held_out


@torch.no_grad()
def test_logits_are_those_of_transformers(engine: Engine, prompts: list[list[int]]) -> None:
    theirs = Qwen3_5ForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32).eval()
    decoder = engine.decoder(max_length=600)
    for prompt in prompts[:3]:
        tokens = torch.tensor([prompt])
        expected = theirs(tokens).logits[0]
        hidden, _ = engine.target.forward_sequence(tokens)
        whole = engine.target.logits(hidden)[0]
        torch.testing.assert_close(whole, expected, atol=1e-4, rtol=0)
        # Stepwise: through prefill, commit and the verify path.
        for length in range(len(prompt) - 5, len(prompt)):
            step = decoder.next_logits(prompt[: length + 1])
            torch.testing.assert_close(step, expected[length], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_greedy_modes_agree_and_reach_their_bars(engine: Engine, prompts: list[list[int]]) -> None:
    results, divergences = [], []
    for found in compare(
        engine.decoder(max_length=600),
        prompts[:20],
        [AR, LINEAR, TREE_16, TREE_64],
        max_tokens=128,
        temperatures=[0.0],
        seed=0,
        stop_ids=engine.tokenizer.eos_ids,
    ):
        if isinstance(found, ModeResult):
            results.append(found)
        else:
            divergences.append(found)
    assert [one for one in divergences if one.gap > 1e-3] == []
    _, linear, tree_16, tree_64 = (one.acceptance_length for one in results)
    assert linear >= 3.0
    assert tree_16 >= 1.08 * linear
    assert tree_64 >= 1.20 * linear


@pytest.mark.slow
def test_sampled_modes_agree(engine: Engine, prompts: list[list[int]]) -> None:
    found = list(
        compare(
            engine.decoder(max_length=600),
            prompts[:5],
            [AR, LINEAR, SHADOW, TREE_16],
            max_tokens=64,
            temperatures=[0.8],
            seed=0,
            stop_ids=engine.tokenizer.eos_ids,
        )
    )
    assert [one for one in found if isinstance(one, Divergence) and one.gap > 1e-3] == []
    assert sum(isinstance(one, ModeResult) for one in found) == 4
