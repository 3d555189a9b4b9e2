"""Small models with random weights, for tests of the arithmetic rather than of the text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ddtree_engine.config import DrafterConfig, LinearAttentionConfig, TargetConfig
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.target import TargetModel

# With so few tokens a drafter of random weights is right often enough to exercise acceptance.
VOCAB = 11


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny operations are slower on several threads, and tests share two cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def target_config(**changes: object) -> TargetConfig:
    values: dict[str, object] = {
        "architecture": "Qwen3_5ForCausalLM",
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "layer_types": ("linear_attention", "full_attention", "linear_attention"),
        "linear": LinearAttentionConfig(2, 4, 6, 5, 4),
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rotary_dim": 4,
        "attention_gate": True,
        "zero_centered_norm": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
    }
    return TargetConfig(**{**values, **changes})  # type: ignore[arg-type]


def drafter_config(**changes: object) -> DrafterConfig:
    values: dict[str, object] = {
        "architecture": "DFlashDraftModel",
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 7,
        "causal_sliding": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "block_size": 6,
        "mask_token_id": 10,
        "target_layer_ids": (0, 2),
        "num_target_layers": 3,
        "max_position_embeddings": 512,
    }
    return DrafterConfig(**{**values, **changes})  # type: ignore[arg-type]


def randomize(model: torch.nn.Module, seed: int, scale: float = 0.3) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.copy_(parameter + noise if "norm" in name else noise)
            parameter.requires_grad_(False)


@pytest.fixture
def target() -> TargetModel:
    model = TargetModel(target_config())
    randomize(model, 1)
    return model.eval()


@pytest.fixture
def drafter() -> DrafterModel:
    model = DrafterModel(drafter_config())
    randomize(model, 2)
    return model.eval()
