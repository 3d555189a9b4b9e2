"""A decoder for the requests of strangers: one that fails takes no other with it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from ddtree_engine.decoder import Decoder, Mode, RecurrentState, Sequence
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.target import TargetModel
from ddtree_engine.tree import DraftTree
from ddtree_engine.tree_batch import TreeBatch


class ServingDecoder(Decoder):
    """A `Decoder` that finds out which requests met numbers that are not finite.

    The ops keep such numbers in the rows and branches where they arose. A request fails only when
    one is on its own path: a draft that goes bad and is rejected harms nobody.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: DrafterModel | None,
        *,
        rows: int,
        max_length: int,
        recurrent_state: RecurrentState = "exact",
    ) -> None:
        super().__init__(
            target, drafter, rows=rows, max_length=max_length, recurrent_state=recurrent_state
        )
        self._broken: list[Sequence] = []

    def take_broken(self) -> list[Sequence]:
        """Return the requests whose numbers were not finite in the last round, once."""
        broken, self._broken = self._broken, []
        return broken

    def _draft(
        self, running: SequenceOf[Sequence], rows: slice, topk: int
    ) -> tuple[Tensor, Tensor]:
        log_probs, ids = super()._draft(running, rows, topk)
        unusable = log_probs.isnan().flatten(1).any(1)
        if bool(unusable.any()):
            self._broken.extend(
                one
                for one, bad in zip(running, unusable.tolist(), strict=True)
                if bad and one.speculation.mode is not Mode.AR
            )
            # The round goes on for the others; what this request drafts no longer matters.
            log_probs = log_probs.masked_fill(unusable[:, None, None], 0.0)
        return log_probs, ids

    def _accept(
        self,
        running: SequenceOf[Sequence],
        trees: SequenceOf[DraftTree],
        logits: Tensor,
        batch: TreeBatch,
    ) -> tuple[list[list[int]], list[list[int]]]:
        # A sum is finite only if every term is; logits are far from where adding them overflows.
        sound = torch.isfinite(logits.sum(-1)).tolist()
        paths, emitted = super()._accept(running, trees, logits, batch)
        for one, path, finite in zip(running, paths, sound, strict=True):
            if not all(finite[node] for node in path):
                self._broken.append(one)
        return paths, emitted
