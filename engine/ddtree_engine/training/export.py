"""A finished run as two Hugging Face folders, with a model card and prompts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ddtree_engine.config import check_fit
from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.errors import EngineError
from ddtree_engine.target.load import weight_name
from ddtree_engine.training.checkpoint import load_best, read_facts
from ddtree_engine.training.corpus import read_corpus
from ddtree_engine.training.model_card import model_card
from ddtree_engine.training.prompts import held_out_prompts
from ddtree_engine.training.run_folder import RunFolder
from ddtree_engine.training.tokenizer import load_tokenizer

PROMPTS = 24


def export(run: RunFolder, to: Path) -> None:
    """Writes ``to/target``, ``to/drafter``, ``to/README.md`` and ``to/prompts.jsonl``.

    Raises:
        EngineError: a part of the run is missing, or this interpreter's library is not the one
            that the run was trained on (the prompts are cut from its source).
    """
    corpus_facts = run.facts(run.corpus)
    generated = run.facts(run.generated)
    target_facts, drafter_facts = read_facts(run.target), read_facts(run.drafter)
    corpus = read_corpus()
    if corpus.sha256 != corpus_facts["sha256"]:
        raise EngineError(
            "this interpreter's standard library is not the one that the run was trained on",
            hint=f"export with Python {corpus_facts['python']}, as built where the corpus was made",
        )
    target_config = read_target_config(run.target)
    check_fit(read_drafter_config(run.drafter), target_config)
    target_weights, drafter_weights = load_best(run.target), load_best(run.drafter)
    prompts = held_out_prompts(corpus.held_out, load_tokenizer(run.tokenizer), PROMPTS)

    named = {weight_name(target_config, name): value for name, value in target_weights.items()}
    _write_model(to / "target", run.target / "config.json", named)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(run.tokenizer / name, to / "target" / name)
    _write_model(to / "drafter", run.drafter / "config.json", drafter_weights)
    lines = [json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts]
    (to / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    size = sum(path.stat().st_size for path in to.glob("*/*"))
    card = model_card(
        corpus_facts, target_facts, generated, drafter_facts, prompts=len(prompts), size=size
    )
    (to / "README.md").write_text(card, encoding="utf-8")


def _write_model(folder: Path, config: Path, tensors: Mapping[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config, folder / "config.json")
    path = folder / "model.safetensors"
    save_file(dict(sorted(tensors.items())), path, metadata={"format": "pt"})
    path.chmod(0o644)
