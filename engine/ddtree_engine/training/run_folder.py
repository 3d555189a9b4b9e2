"""The folder of a training run: which part of it is where, and the corpus in it."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from ddtree_engine.errors import EngineError
from ddtree_engine.training.corpus import Corpus, Document, held_out_modules, read_corpus
from ddtree_engine.training.tokenizer import (
    END_OF_TEXT,
    VOCAB_SIZE,
    load_tokenizer,
    save_tokenizer,
    token_id,
    train_tokenizer,
)

_MADE_BY = {"corpus": "corpus", "generated": "generate"}


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths below ``root``; every command of the training reads and writes here alone."""

    root: Path

    @property
    def corpus(self) -> Path:
        """Token streams and what they were made from."""
        return self.root / "corpus"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's files."""
        return self.root / "tokenizer"

    @property
    def target(self) -> Path:
        """State and best parameters of the target."""
        return self.root / "target"

    @property
    def drafter(self) -> Path:
        """State and best parameters of the drafter."""
        return self.root / "drafter"

    @property
    def generated(self) -> Path:
        """Text of the target, for the drafter."""
        return self.root / "generated"

    def facts(self, folder: Path) -> dict[str, Any]:
        """Reads ``facts.json`` of a part.

        Raises:
            EngineError: that part has not been made, or is damaged.
        """
        try:
            facts: dict[str, Any] = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EngineError(
                f"`{folder}` is not a finished part of a training run",
                hint=f"run `train {_MADE_BY[folder.name]}` with the same --out first",
            ) from error
        return facts

    def stream(self, name: str, device: torch.device) -> Tensor:
        """The token stream `train` or `held_out`, ``[N]`` int32."""
        return load_tokens(self.corpus / f"{name}.npy", device)


def write_corpus(run: RunFolder, *, vocab_size: int = VOCAB_SIZE) -> dict[str, Any]:
    """Reads the library, trains the tokenizer, writes the streams; returns the facts."""
    corpus = read_corpus()
    tokenizer = train_tokenizer((d.text for d in corpus.train), vocab_size)
    save_tokenizer(tokenizer, run.tokenizer, max_length=4096)
    return _write_streams(run, corpus)


def _write_streams(run: RunFolder, corpus: Corpus) -> dict[str, Any]:
    tokenizer = load_tokenizer(run.tokenizer)
    separator = token_id(tokenizer, END_OF_TEXT)
    run.corpus.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "source": "the Python standard library, source of the interpreter that ran the command",
        "python": platform.python_version(),
        "sha256": corpus.sha256,
        "held_out_modules": list(held_out_modules()),
        "left_out": _count(corpus.left_out),
        "vocab_size": tokenizer.get_vocab_size(),
    }
    for name, part in (("train", corpus.train), ("held_out", corpus.held_out)):
        stream = _encode(tokenizer, part, separator)
        np.save(run.corpus / f"{name}.npy", stream)
        facts[name] = {
            "documents": len(part),
            "characters": sum(len(d.text) for d in part),
            "tokens": len(stream),
        }
    path = run.corpus / "facts.json"
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return facts


def load_tokens(path: Path, device: torch.device) -> Tensor:
    """Reads token ids from a `.npy` file, int32 on ``device``.

    Raises:
        EngineError: the file is missing or damaged.
    """
    try:
        return torch.from_numpy(np.load(path).astype(np.int32)).to(device)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"`{path}` can't be read", hint="run the part of the training that makes it first"
        ) from error


def _encode(tokenizer: Tokenizer, part: tuple[Document, ...], separator: int) -> NDArray[np.uint16]:
    encodings = tokenizer.encode_batch([d.text for d in part])
    pieces = [np.asarray([separator, *e.ids], dtype=np.uint16) for e in encodings]
    return np.concatenate([*pieces, np.asarray([separator], dtype=np.uint16)])


def _count(left_out: dict[str, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in left_out.values():
        kind = "the same as another file" if reason.startswith("the same as") else reason
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items()))
