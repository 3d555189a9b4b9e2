"""A round without the host: every shape is fixed and every number stays on the device.

The same five stages as in `decoder.py`. What differs from request to request - where it stands, its
tree, how it samples, how much it accepts - is in tensors, so that one CUDA graph is the round for
any requests of a batch size and a tree size. Modes differ in budget and width alone: a lone anchor
is a tree of budget 0, the drafter's chain one of width 1.

A round leaves what it accepted in a tensor that the host may read later, and moves the rows on
itself. Rows that are not active do all the work and commit nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ddtree_engine.cache import DrafterCache, Paths, TargetCache
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.ops.choose_nodes import choose_nodes
from ddtree_engine.ops.draft_trees import DraftTrees, draft_trees
from ddtree_engine.ops.topk_logprob import topk_logprob
from ddtree_engine.ops.tree_walk import Walk, tree_walk
from ddtree_engine.round_shapes import RoundShape
from ddtree_engine.row_state import RowState
from ddtree_engine.side_stream import beside
from ddtree_engine.target import TargetModel, Verification
from ddtree_engine.tree_batch import TreeBatch


class Candidates(NamedTuple):
    """What the drafter proposes: [B, L, K] log-probabilities and ids, likeliest first."""

    log_probs: Tensor
    ids: Tensor


class Accepted(NamedTuple):
    """What a round accepted.

    Attributes:
        walk: the path of each request.
        emitted: [B, L+1] int64, tokens of the path after its root, then the bonus; past the
            path's length, anything.
        sound: [B] bool, whether all numbers on the way were finite.
    """

    walk: Walk
    emitted: Tensor
    sound: Tensor


class DeviceRound:
    """The round of one shape over given caches. Calling it runs it, on any device."""

    def __init__(
        self,
        target: TargetModel,
        drafter: DrafterModel | None,
        cache: TargetCache,
        drafter_cache: DrafterCache | None,
        state: RowState,
        shape: RoundShape,
    ) -> None:
        self.target, self.cache = target, cache
        self.shape, self.state = shape, state
        self.rows = slice(0, shape.rows)
        self.drafter = self.drafter_cache = None
        if shape.width:
            assert drafter is not None, "only `ar` goes without a drafter"
            assert drafter_cache is not None
            self.drafter, self.drafter_cache = drafter, drafter_cache
        block = self.drafter.config.block_size if self.drafter is not None else 1
        self.depth = min(block - 1, shape.budget)
        self.params = state.sampling.first(shape.rows)
        device = state.lengths.device
        self.block_tokens: Tensor | None = None
        if self.drafter is not None:
            self.block_tokens = self.drafter.block_tokens(state.anchors[self.rows])
        chain = TreeBatch.chain(
            torch.zeros(shape.rows, 1, dtype=torch.int64, device=device),
            conv_kernel=target.conv_kernel,
        )
        one = torch.ones(shape.rows, dtype=torch.int64, device=device)
        self._alone = DraftTrees(
            chain.tokens, chain.tokens - 1, chain.depths, one, chain.ancestors, chain.taps
        )

    def __call__(self) -> Tensor:
        """Run one round.

        Returns:
            [B, 2L+5] int64 for each request: accepted nodes, or 0 for a row that is not active;
            whether its numbers were finite; `Accepted.emitted`; the path's nodes; its budget.
        """
        candidates = self.draft()
        trees = self.build(candidates)
        found, logits = self.verify(trees)
        accepted = self.accept(trees, logits, candidates)
        return self.commit(found, accepted)

    def draft(self) -> Candidates | None:
        """Candidates of every depth."""
        if self.drafter is None or self.drafter_cache is None or self.block_tokens is None:
            return None
        B, K = self.shape.rows, self.shape.width
        self.block_tokens[:, 0] = self.state.anchors[self.rows]
        hidden = self.drafter.draft(
            self.target.embed(self.block_tokens),
            self.drafter_cache.keys[:, self.rows, : self.shape.context],
            self.drafter_cache.values[:, self.rows, : self.shape.context],
            self.state.lengths[self.rows],
        )
        logits = self.target.head(hidden)
        log_probs, ids = topk_logprob(logits.flatten(0, 1), min(K, logits.shape[-1]))
        return Candidates(log_probs.view(B, -1, log_probs.shape[1]), ids.view(B, -1, ids.shape[1]))

    def build(self, candidates: Candidates | None) -> DraftTrees:
        """The tree of each request."""
        anchors = self.state.anchors[self.rows]
        if candidates is None:
            return self._alone._replace(tokens=anchors[:, None])
        return draft_trees(
            anchors,
            candidates.log_probs,
            candidates.ids,
            self.state.budgets[self.rows],
            self.state.widths[self.rows],
            budget=self.shape.budget,
            conv_kernel=self.target.conv_kernel,
        )

    def verify(self, trees: DraftTrees) -> tuple[Verification, Tensor]:
        """Run the target over all nodes; its logits [B, N, V] are in the dtype of its weights."""
        batch = TreeBatch(trees.tokens, trees.depths, trees.ancestors, trees.ancestors, trees.taps)
        layers = self.drafter.config.target_layer_ids if self.drafter is not None else ()
        found = self.target.verify(
            batch,
            self.cache,
            self.rows,
            layers,
            lengths=self.state.lengths[self.rows],
            context=self.shape.context,
        )
        return found, self.target.head(found.hidden)

    def accept(self, trees: DraftTrees, logits: Tensor, candidates: Candidates | None) -> Accepted:
        """Choose a token after every node and walk."""
        best, choices = topk_logprob(logits.flatten(0, 1), 1)
        choices = choices.view(trees.tokens.shape)
        # The log-probability of the best token is finite unless some logit is NaN or too large.
        finite = torch.isfinite(best).view(trees.tokens.shape)
        if self.shape.sampled:
            choices = choose_nodes(
                logits,
                trees.depths,
                self.state.lengths[self.rows],
                self.params,
                depth=self.depth,
                filters=self.shape.filters,
            )
        walk = tree_walk(choices, trees.tokens, trees.parents, trees.sizes, depth=self.depth)
        sound = finite.gather(1, walk.nodes).all(1)
        if candidates is not None:
            # A request that drafts nothing is not harmed by what the drafter makes of it.
            drafted = self.state.budgets[self.rows] > 0
            sound &= ~(drafted & candidates.log_probs.isnan().flatten(1).any(1))
        return Accepted(walk, choices.gather(1, walk.nodes), sound)

    def commit(self, found: Verification, accepted: Accepted) -> Tensor:
        """Append the accepted paths to the caches and move the rows on; see `__call__`."""
        walk, state = accepted.walk, self.state
        starts, active = state.lengths[self.rows], state.active[self.rows]
        lengths = walk.lengths * active
        paths = Paths(lengths, walk.nodes)
        with beside(
            lambda: self.cache.commit(found.stash, paths, self.rows, starts, self.target.filters),
            lengths.device,
        ):
            if self.drafter is not None and self.drafter_cache is not None:
                assert found.features is not None
                request = torch.arange(len(lengths), device=lengths.device)[:, None]
                steps = torch.arange(walk.nodes.shape[1], device=lengths.device)
                keys, values = self.drafter.context(
                    found.features[request, walk.nodes], starts[:, None] + steps
                )
                self.drafter_cache.append(keys, values, lengths, self.rows, starts)
        anchors = state.anchors[self.rows]
        anchors.copy_(torch.where(active > 0, walk.bonus, anchors))
        starts += lengths
        return torch.cat(
            [
                torch.stack([lengths, accepted.sound.long()], dim=1),
                accepted.emitted,
                walk.nodes,
                state.budgets[self.rows, None],
            ],
            dim=1,
        )
