"""A round that the host leads: it knows every number, and each stage waits for the one before.

The same stages as in `device_round.py`. It serves what a round of fixed shapes cannot: prompts,
shadow evidence, the experiment that leaks state, and machines without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import torch
from torch import Tensor

from ddtree_engine.cache import DrafterCache, Paths, TargetCache
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.ops.choose_nodes import choose_nodes
from ddtree_engine.ops.topk_logprob import topk_logprob
from ddtree_engine.sampling import SamplingTensors
from ddtree_engine.sequence import Mode, Sequence
from ddtree_engine.shadow import BUDGETS
from ddtree_engine.stages import StageClock
from ddtree_engine.target import TargetModel, Verification, prefill
from ddtree_engine.tree import DraftTree, best_first, chain, fixed_point, walk
from ddtree_engine.tree_batch import TreeBatch


class _Shape(NamedTuple):
    """What a request's round verifies.

    Attributes:
        tree: its nodes.
        sound: whether the numbers that it was made of were usable.
        evidence: of a shadow request, the tree that is matched with what comes.
    """

    tree: DraftTree
    sound: bool = True
    evidence: DraftTree | None = None


class HostRound:
    """Rounds over given caches. Calling it runs one."""

    def __init__(
        self,
        target: TargetModel,
        drafter: DrafterModel | None,
        cache: TargetCache,
        drafter_cache: DrafterCache | None,
        clock: StageClock,
        *,
        leak: bool,
    ) -> None:
        """Take over the caches.

        Args:
            target: the model whose tokens are emitted.
            drafter: proposes.
            cache: of the target.
            drafter_cache: of the drafter, if there is one.
            clock: told how long each stage takes.
            leak: whether siblings see each other's recurrent state.
        """
        self.target, self.drafter = target, drafter
        self.cache, self.drafter_cache = cache, drafter_cache
        self.clock, self.leak = clock, leak
        self.device = target.embed_tokens.weight.device

    def __call__(self, running: SequenceOf[Sequence]) -> list[tuple[Sequence, list[int]]]:
        """Run one round for requests in the first rows; each with the tokens that it emitted."""
        rows = slice(0, len(running))
        # What a round changes in a request it changes at its end: without memory it is run again.
        shapes = self._shape(running, rows)
        trees = [shape.tree for shape in shapes]
        with self.clock.timed("verify"):
            batch = TreeBatch.from_trees(
                trees,
                conv_kernel=self.target.conv_kernel,
                device=self.device,
                leak=self.leak,
            )
            drafting = any(one.speculation.drafts for one in running)
            layers = self.feature_layers if drafting else ()
            found = self.target.verify(batch, self.cache, rows, layers)
            logits = self.target.logits(found.hidden)
        with self.clock.timed("accept"):
            paths, emitted, finite = self._accept(running, trees, logits, batch)
        with self.clock.timed("commit"):
            self.commit(found, paths, rows)
        for one, shape, sound in zip(running, shapes, finite, strict=True):
            if not (shape.sound and sound):
                one.finish_reason = "failed"
            if one.shadow is not None and shape.evidence is not None:
                anchor = len(one.prompt) + len(one.emitted) - 1
                one.shadow.record(shape.evidence, anchor, shape.tree.tokens[1:])
        outcome = [
            (one, [] if one.finish_reason == "failed" else one.take(tokens))
            for one, tokens in zip(running, emitted, strict=True)
        ]
        for one, _ in outcome:
            if one.shadow is not None:
                known = [*one.prompt, *one.emitted]
                one.shadow.resolve(known, finished=one.finish_reason is not None)
        return outcome

    def append(self, tokens: Tensor, row: int, *, speculating: bool) -> None:
        """Commit known tokens to a row.

        Args:
            tokens: [1, N] int64, a piece of a prompt.
            row: its request's.
            speculating: whether the drafter will need their features.
        """
        start, count = self.cache.lengths[row], tokens.shape[1]
        layers = self.feature_layers if speculating else ()
        piece, features = prefill(self.target, tokens, self.cache, row, layers)
        if features is not None and self.drafter is not None and self.drafter_cache is not None:
            positions = torch.arange(start, start + count, device=self.device)
            keys, values = self.drafter.context(features, positions[None])
            self.drafter_cache.append_piece(keys, values, row)
        # Only when the drafter has them too: where memory ran out before, nothing is committed.
        self.cache.settle(piece, row)
        self.cache.advance(row, count)
        if features is not None and self.drafter_cache is not None:
            self.drafter_cache.advance(row, count)

    def commit(self, found: Verification, paths: list[list[int]], rows: slice) -> None:
        """Append the accepted path of each request in `rows` to the caches."""
        accepted = Paths.of(paths, self.device)
        starts = torch.tensor(self.cache.lengths[rows], device=self.device)
        self._push_features(found.features, accepted, rows, starts)
        self.cache.commit(found.stash, accepted, rows, starts, self.target.filters)
        # Only when both have them: where memory ran out before, nothing has been appended.
        for row, path in enumerate(paths, start=rows.start):
            self.cache.advance(row, len(path))
            if found.features is not None and self.drafter_cache is not None:
                self.drafter_cache.advance(row, len(path))

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose residual streams the drafter takes."""
        return self.drafter.config.target_layer_ids if self.drafter is not None else ()

    def _accept(
        self,
        running: SequenceOf[Sequence],
        trees: SequenceOf[DraftTree],
        logits: Tensor,
        batch: TreeBatch,
    ) -> tuple[list[list[int]], list[list[int]], list[bool]]:
        """Accepted path of each request, what it emits, and whether its numbers were finite.

        It emits the path's tokens, then the bonus.
        """
        sampling = [one.sampling for one in running]
        if all(one.greedy for one in sampling):
            choices = logits.argmax(-1).tolist()
        else:
            choices = choose_nodes(
                logits,
                batch.depths,
                torch.tensor(self.cache.lengths[: len(running)], device=self.device),
                SamplingTensors.of(sampling, self.device),
                depth=max(max(tree.depths) for tree in trees),
                filters=any(one.filters for one in sampling),
            ).tolist()
        # The ops keep a number that is not finite in its own branch, so a draft that goes bad and
        # is rejected harms nobody. A sum is finite only if every term is.
        sound = torch.isfinite(logits.sum(-1)).tolist()
        paths, emitted, sounds = [], [], []
        for one, tree, chosen, finite in zip(running, trees, choices, sound, strict=True):
            path, bonus = walk(tree, chosen.__getitem__)
            paths.append(path)
            one.path = path
            sounds.append(all(finite[node] for node in path))
            emitted.append([*(tree.tokens[node] for node in path[1:]), bonus])
        return paths, emitted, sounds

    def _push_features(
        self, features: Tensor | None, paths: Paths, rows: slice, starts: Tensor
    ) -> None:
        """Give the drafter the features of the accepted tokens, and of no other node."""
        if features is None or self.drafter is None or self.drafter_cache is None:
            return
        request = torch.arange(len(paths.lengths), device=self.device)[:, None]
        steps = torch.arange(paths.nodes.shape[1], device=self.device)
        keys, values = self.drafter.context(features[request, paths.nodes], starts[:, None] + steps)
        self.drafter_cache.append(keys, values, paths.lengths, rows, starts)

    def _shape(self, running: SequenceOf[Sequence], rows: slice) -> list[_Shape]:
        """The tree of each request for this round."""
        if not any(one.speculation.drafts for one in running):
            return [_Shape(chain(one.anchor, ())) for one in running]
        with self.clock.timed("draft"):
            widest = max(one.speculation.candidates for one in running)
            log_probs, ids = self._draft(running, rows, widest)
            # The round goes on for the others; what a failed request drafts no longer matters.
            unusable = log_probs.isnan().flatten(1).any(1)
            log_probs = log_probs.masked_fill(unusable[:, None, None], 0.0)
        with self.clock.timed("build"):
            scores = fixed_point(log_probs.numpy()).tolist()
            candidates = ids.tolist()
            return [
                self._build(one, scores[b], candidates[b], sound=not bad)
                for b, (one, bad) in enumerate(zip(running, unusable.tolist(), strict=True))
            ]

    def _draft(
        self, running: SequenceOf[Sequence], rows: slice, topk: int
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids [B, block-1, topk] of the likeliest tokens, on the CPU.

        Equal ones come lowest id first, so that trees do not depend on the device.
        """
        assert self.drafter is not None, "check() lets no request in that needs one"
        assert self.drafter_cache is not None
        lengths = self.drafter_cache.lengths[rows]
        T = max(lengths)
        block = self.drafter.block_tokens(
            torch.tensor([one.anchor for one in running], device=self.device)
        )
        hidden = self.drafter.draft(
            self.target.embed(block),
            self.drafter_cache.keys[:, rows, :T],
            self.drafter_cache.values[:, rows, :T],
            torch.tensor(lengths, device=self.device),
        )
        logits = self.target.logits(hidden)
        k = min(topk, logits.shape[-1])
        log_probs, ids = topk_logprob(logits.flatten(0, 1), k)
        shape = (*logits.shape[:2], k)
        return log_probs.cpu().view(shape), ids.cpu().view(shape)

    def _build(
        self,
        one: Sequence,
        scores: list[list[int]],
        candidates: list[list[int]],
        *,
        sound: bool,
    ) -> _Shape:
        """The shape that the request's mode makes of the drafter's candidates."""
        mode, budget, k = one.speculation.mode, one.budget, one.speculation.topk
        drafts = [row[0] for row in candidates]
        if mode is Mode.AR:
            return _Shape(chain(one.anchor, ()))
        scores, wide = [row[:k] for row in scores], [row[:k] for row in candidates]
        if mode is Mode.TREE:
            return _Shape(best_first(one.anchor, scores, wide, budget), sound)
        evidence = None
        if one.shadow is not None:
            evidence = best_first(one.anchor, scores, wide, max(BUDGETS))
        return _Shape(chain(one.anchor, drafts), sound, evidence)
