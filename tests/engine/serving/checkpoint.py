"""A tiny random checkpoint as Hugging Face folders, with a real byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.target import TargetModel
from ddtree_engine.target.load import weight_name
from tests.engine.conftest import randomize

EOS, POISON, MASK = "<|endoftext|>", "<|poison|>", "<|MASK|>"
SPECIAL = (EOS, "<|im_start|>", "<|im_end|>", POISON, MASK)
TEXT = ["def fibonacci(n):\n    a, b = 0, 1\n    return a\n", "naïve café: 5 € für 漢字 🙂\n"]
# Most of the text is made of these: a drafter without training is then right now and then.
# In the byte-level alphabet "Ġ" is a space, "Ċ" a newline, and "Ã", "â" and "©" are single bytes.
LIKELY = ("a", "b", "Ġreturn", "Ċ", "Ã", "â", "©", "Ġ", "n", "def")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=340,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 20, trainer)
    return tokenizer


def write_checkpoint(folder: Path) -> tuple[Path, Path]:
    """Write a target and its drafter; return their folders.

    The embedding of the special token `POISON` is NaN: a prompt with it breaks its own request.
    """
    target_folder, drafter_folder = folder / "tiny", folder / "tiny-drafter"
    tokenizer = build_tokenizer()
    vocab = tokenizer.get_vocab_size()
    ids = {name: tokenizer.token_to_id(name) for name in (*SPECIAL, *LIKELY)}
    shared = {
        "vocab_size": vocab,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 100_000,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    }
    target_json = {
        **shared,
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 5,
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": False,
        "eos_token_id": ids[EOS],
    }
    drafter_json = {
        **shared,
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
        "block_size": 6,
        "num_target_layers": 3,
        "dflash_config": {"mask_token_id": ids[MASK], "target_layer_ids": [0, 2]},
    }
    for path, content in ((target_folder, target_json), (drafter_folder, drafter_json)):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(content))
    tokenizer.save(str(target_folder / "tokenizer.json"))
    (target_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))

    config = read_target_config(target_folder)
    target = TargetModel(config)
    randomize(target, 1)
    assert target.lm_head is not None
    with torch.no_grad():
        target.lm_head.weight[[ids[name] for name in LIKELY]] *= 6
        target.lm_head.weight[ids[EOS]] *= 3
        target.embed_tokens.weight[ids[POISON]] = torch.nan
        target.lm_head.weight[ids[POISON]] = 0  # never among the likeliest
    save_file(
        {weight_name(config, name): value for name, value in target.state_dict().items()},
        target_folder / "model.safetensors",
    )
    drafter = DrafterModel(read_drafter_config(drafter_folder))
    randomize(drafter, 2)
    save_file(dict(drafter.state_dict()), drafter_folder / "model.safetensors")
    return target_folder, drafter_folder
