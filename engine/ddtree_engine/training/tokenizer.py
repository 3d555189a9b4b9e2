"""The demo's tokenizer: byte-level BPE made for source code, with a ChatML template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ddtree_engine.errors import EngineError

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
MASK = "<|MASK|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END, MASK)

VOCAB_SIZE = 4096

PATTERN = (
    r"\n\s*"  # a line break with the indentation that follows it
    r"|[ ._]?\p{L}+"  # a word with what joins it to the one before
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s+"
)
"""Pieces that no token crosses. Every character is in exactly one piece, so nothing is lost."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Trains byte-level BPE on ``texts``; the special tokens come first, from id 0.

    All 256 bytes are in the vocabulary, so that every text encodes and decodes to itself.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes ``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "mask_token": MASK,
        "additional_special_tokens": [IM_START, IM_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {
        "eos_token_id": [token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, IM_END)],
        "pad_token_id": token_id(tokenizer, END_OF_TEXT),
        "do_sample": False,
    }
    for name, content in (("tokenizer_config", config), ("generation_config", generation)):
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a special token.

    Raises:
        EngineError: the vocabulary lacks it.
    """
    found = tokenizer.token_to_id(token)
    if found is None:
        raise EngineError(
            f"the tokenizer has no `{token}`", hint="make it again: `train corpus` with this --out"
        )
    return int(found)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Reads back what :func:`save_tokenizer` wrote."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
