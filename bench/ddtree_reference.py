"""Runs a checkout of DDTree's published code on random weights; nothing of it is kept here."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers


class Rounds:
    """The reference's target, drafter and loop."""

    def __init__(self, checkout: Path, shape: Path, device: str = "cuda") -> None:
        """Import the checkout and make its models, in bfloat16 with SDPA.

        Args:
            checkout: folder with `ddtree.py`.
            shape: folder with a `config.json` in `target` and in `drafter`.
            device: where.
        """
        sys.path.insert(0, str(checkout))
        _stand_in("loguru", logger=logging.getLogger("ddtree"))
        _stand_in("datasets", load_dataset=None, Features=None, Sequence=None, Value=None)
        self._ddtree: Any = importlib.import_module("ddtree")
        drafter: Any = importlib.import_module("model").DFlashDraftModel
        self._device = device
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            target: Any = transformers.Qwen3ForCausalLM(_config(shape / "target"))
            self._target = target.eval()
            self._drafter = drafter(_config(shape / "drafter")).eval()
        torch.set_default_dtype(torch.float32)
        self._mask = self._drafter.config.dflash_config["mask_token_id"]

    def run(
        self, budget: int, prefix: int, *, rounds: int
    ) -> tuple[list[float], dict[str, float], float]:
        """Run so many rounds behind a random prefix.

        Returns:
            Milliseconds of each round, mean milliseconds of each stage as the reference times
            them, and tokens a round.
        """
        tokens = torch.randint(0, self._target.config.vocab_size, (1, prefix), device=self._device)
        found = self._ddtree.ddtree_generate(
            model=self._drafter,
            target=self._target,
            input_ids=tokens,
            mask_token_id=self._mask,
            max_new_tokens=rounds,
            block_size=self._drafter.block_size,
            stop_token_ids=None,
            tree_budget=budget,
        )
        marks = [0.0, *found.round_timestamps]
        times = [(end - begin) * 1e3 for begin, end in pairwise(marks)]
        stages = {name: 1e3 * total / len(times) for name, total in found.stage_times.items()}
        return times, stages, sum(found.acceptance_lengths) / len(times)


def _config(folder: Path) -> Any:
    values = json.loads((folder / "config.json").read_text())
    config = transformers.Qwen3Config(**values)
    config._attn_implementation = "sdpa"
    return config


def _stand_in(name: str, **values: Any) -> None:
    """Let an import succeed of a package that is not installed and that no round uses."""
    if find_spec(name) is None:
        module = ModuleType(name)
        for key, value in values.items():
            setattr(module, key, value)
        sys.modules[name] = module
