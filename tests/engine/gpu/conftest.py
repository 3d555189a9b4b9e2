"""The demo model on the GPU, and what tests here ask of it."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch

from ddtree_engine.comparison import MAX_GAP, divergence
from ddtree_engine.decoder import Decoder
from ddtree_engine.engine import DEMO, Engine, load_engine
from ddtree_engine.sequence import Sequence


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.path.parent.name == "gpu":
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@cache
def load(device: str, dtype: str) -> Engine:
    """The demo, loaded once."""
    return load_engine(device=device, dtype=dtype)


@cache
def text(length: int) -> tuple[int, ...]:
    """So many tokens of the demo's prompts, one after the other."""
    lines = (DEMO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    tokens = load("cpu", "float32").tokenizer.encode("\n".join(prompts))
    return tuple((tokens * (length // len(tokens) + 1))[:length])


def assert_same(expected: Sequence, found: Sequence, judge: Decoder) -> None:
    """The two emitted the same tokens, or differ first where rounding may tip the choice.

    The judge knows the logits and has a free row.
    """
    assert len(found.emitted) == len(expected.emitted)
    if found.emitted != expected.emitted:
        dtype = str(judge.target.embed_tokens.weight.dtype).removeprefix("torch.")
        mode = str(found.speculation.mode)
        left = divergence(judge, expected.prompt, expected.emitted, found, mode, 0)
        assert left.gap <= MAX_GAP[dtype], left
