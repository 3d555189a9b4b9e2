"""The model that the engine is timed beside decodes as it should, compiled or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_engine.bench.random_model import shape_folder

transformers_model = pytest.importorskip("bench.transformers_model")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The 27B shape with small numbers."""
    values = json.loads((shape_folder("qwen3.6-27b") / "target" / "config.json").read_text())
    values |= {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "head_dim": 32}
    values |= {"num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1}
    values |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "eos_token_id": 1}
    values |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "pad_token_id": 1}
    values["rope_parameters"]["mrope_section"] = [2, 1, 1]
    (tmp_path / "config.json").write_text(json.dumps(values))
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_the_compiled_model_decodes_what_the_other_does(tiny: Path) -> None:
    tokens = []
    for compiled in (False, True):
        decoding = transformers_model.Decoding(
            tiny, 20, room=30, compiled=compiled, device="cpu", backend="eager"
        )
        decoding.warm_up()
        found = []
        for _ in range(6):
            decoding.step()
            found.append(int(decoding.token))
        tokens.append(found)
        assert decoding.graphs == int(compiled)
    assert tokens[0] == tokens[1]
