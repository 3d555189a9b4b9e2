"""Transformers' own model of a shape with random weights, decoding token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

WARM_UP_STEPS = 4


class Decoding:
    """One request behind a random prefix.

    Attributes:
        token: the last one, [1, 1].
        graphs: how many graphs the compiler made of a step; 0 without it.
    """

    def __init__(
        self,
        folder: Path,
        prefix: int,
        *,
        room: int,
        compiled: bool,
        device: str = "cuda",
        backend: str = "inductor",
    ) -> None:
        """Make the model and take in the prefix, uncompiled.

        Args:
            folder: with a `config.json` of a text model.
            prefix: tokens.
            room: tokens that may follow.
            compiled: with a static cache, in CUDA graphs, as Transformers' own `generate` compiles.
            device: where.
            backend: of the compiler.
        """
        values = json.loads((folder / "config.json").read_text())
        (architecture,) = values["architectures"]
        made: Any = getattr(transformers, architecture)
        config = made.config_class(**values)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            self._model = made(config).eval()
        torch.set_default_dtype(torch.float32)
        self.graphs = 0
        tokens = torch.randint(0, values["vocab_size"], (1, prefix), device=device)
        self._position = torch.tensor([[prefix]], device=device)
        cache: Any
        if compiled:
            cache = transformers.StaticCache(config=config, max_cache_len=prefix + room)
        else:
            cache = transformers.DynamicCache(config=config)
        self._cache = cache
        with torch.no_grad():
            logits = self._model(tokens, past_key_values=cache, logits_to_keep=1).logits
        self.token = logits[:, -1:].argmax(-1)
        self._forward = self._model.__call__
        if compiled:
            mode = "reduce-overhead" if backend == "inductor" else None
            self._forward = torch.compile(
                self._model.forward, mode=mode, backend=backend, dynamic=False
            )

    @torch.no_grad()
    def step(self) -> None:
        """Decode one token, greedily."""
        logits = self._forward(
            self.token, position_ids=self._position, past_key_values=self._cache
        ).logits
        # A CUDA graph's outputs are overwritten by its next run.
        self.token = logits[:, -1:].argmax(-1)
        self._position = self._position + 1

    def warm_up(self) -> None:
        """Decode the first tokens, which pay for compilers."""
        for _ in range(WARM_UP_STEPS):
            self.step()
        from torch._dynamo.utils import counters

        self.graphs = counters["stats"].get("unique_graphs", 0)
