"""Whole rounds, their stages and their floor, for one shape of model and one shape of round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ddtree_engine.bench.floor import bytes_of, products_of, run_products
from ddtree_engine.bench.timing import Timing, graphed, measure
from ddtree_engine.cache import DrafterCache, TargetCache
from ddtree_engine.comparison import label
from ddtree_engine.device_round import DeviceRound
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.ops.tree_walk import Walk
from ddtree_engine.round_shapes import RoundShape, context_bucket
from ddtree_engine.row_state import RowState
from ddtree_engine.sampling import SamplingParams
from ddtree_engine.sequence import Mode, Speculation
from ddtree_engine.target import TargetModel

# So many tokens of a prefix are drawn; the rest repeats them.
PERIOD = 1024
LONG_PATH = 8
"""Accepted nodes of the commit that is timed beside that of the root alone."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One mode at one prefix.

    Attributes:
        mode: as on the command line.
        nodes: that a request's verify pass has.
        prefix: tokens that were committed before each round.
        rows: requests.
        round: the whole round, one graph.
        floor: its matrix products alone, one graph.
        floor_bytes: of the weights that they read.
        stages: each stage as a graph of its own.
        state_bytes: of what a verify pass leaves for the commit, a request.
    """

    mode: str
    nodes: int
    prefix: int
    rows: int
    round: Timing
    floor: Timing
    floor_bytes: int
    stages: dict[str, Timing]
    state_bytes: int

    @property
    def ratio(self) -> float:
        """Whole round over floor."""
        return self.round.median / self.floor.median


class Bench:
    """Rounds over caches that hold a random prefix."""

    def __init__(
        self,
        target: TargetModel,
        drafter: DrafterModel | None,
        *,
        rows: int,
        max_length: int,
    ) -> None:
        """Reserve the caches and fill them."""
        self.target, self.drafter, self.rows = target, drafter, rows
        weight = target.embed_tokens.weight
        self.device = weight.device
        block = 1 if drafter is None else drafter.config.block_size
        sizes: dict[str, Any] = {
            "rows": rows,
            "max_length": max_length + 4 * block,
            "dtype": weight.dtype,
            "device": self.device,
        }
        self.cache = TargetCache(target.config, **sizes)
        self.drafter_cache = None if drafter is None else DrafterCache(drafter.config, **sizes)
        self.state = RowState(rows, self.device)
        for keys in (self.cache, self.drafter_cache):
            for tensor in () if keys is None else (keys.keys, keys.values):
                for begin in range(0, tensor.shape[2], PERIOD):
                    tensor[:, :, begin : begin + PERIOD].normal_()
        self.cache.tails.normal_()
        self.cache.states.normal_(0.0, 0.1)
        self._floors: dict[RoundShape, Timing] = {}

    def shape(self, speculation: Speculation, prefix: int, sampling: SamplingParams) -> RoundShape:
        """The round of a mode behind a prefix."""
        block = 1 if self.drafter is None else self.drafter.config.block_size
        context = context_bucket(prefix + block, self.cache.max_length)
        sampled = not sampling.greedy
        filters = sampled and bool(sampling.top_k or sampling.top_p < 1.0)
        if speculation.mode is Mode.AR or self.drafter is None:
            return RoundShape(self.rows, context, sampled=sampled, filters=filters)
        tree = speculation.mode is Mode.TREE
        return RoundShape(
            rows=self.rows,
            context=context,
            budget=speculation.budget if tree else self.drafter.config.block_size - 1,
            width=speculation.topk if tree else 1,
            sampled=sampled,
            filters=filters,
        )

    def place(self, shape: RoundShape, prefix: int, sampling: SamplingParams) -> None:
        """Let all rows decode behind `prefix` tokens."""
        for row in range(self.rows):
            self.state.set(
                row,
                length=prefix,
                anchor=1 + row,
                budget=shape.budget,
                width=max(1, shape.width),
                sampling=sampling,
            )

    @torch.inference_mode()
    def run(
        self,
        speculation: Speculation,
        prefix: int,
        *,
        runs: int,
        stages: bool = True,
        sampling: SamplingParams | None = None,
    ) -> Measured:
        """Measure one mode at one prefix, and its floor where that is new."""
        sampling = sampling or SamplingParams()
        shape = self.shape(speculation, prefix, sampling)
        self.place(shape, prefix, sampling)
        steps = self.round_of(shape)
        alike = replace(shape, context=0)  # products do not depend on it
        if alike not in self._floors:
            products = products_of(self.target, self.drafter, shape)
            floor = graphed(run_products(products), self.device)
            self._floors[alike] = measure(floor, self.device, runs=runs)

        def rewind() -> None:
            self.state.lengths.fill_(prefix)

        whole = measure(graphed(steps, self.device), self.device, runs=runs, before=rewind)
        rewind()
        found, _ = steps.verify(steps.build(steps.draft()))
        return Measured(
            mode=label(speculation),
            nodes=shape.budget + 1,
            prefix=prefix,
            rows=self.rows,
            round=whole,
            floor=self._floors[alike],
            floor_bytes=bytes_of(products_of(self.target, self.drafter, shape)),
            stages=self._stages(steps, rewind, runs) if stages else {},
            state_bytes=found.stash.nbytes // self.rows,
        )

    def round_of(self, shape: RoundShape) -> DeviceRound:
        """The round itself."""
        return DeviceRound(
            self.target, self.drafter, self.cache, self.drafter_cache, self.state, shape
        )

    def _stages(
        self, steps: DeviceRound, rewind: Callable[[], None], runs: int
    ) -> dict[str, Timing]:
        candidates = steps.draft()
        trees = steps.build(candidates)
        found, logits = steps.verify(trees)
        accepted = steps.accept(trees, logits, candidates)
        work: dict[str, Callable[[], Any]] = {
            "draft": steps.draft,
            "build": lambda: steps.build(candidates),
            "verify": lambda: steps.verify(trees),
            "accept": lambda: steps.accept(trees, logits, candidates),
        }
        if steps.drafter is None:
            del work["draft"], work["build"]
        B, D = accepted.walk.nodes.shape
        for length in sorted({1, min(LONG_PATH, D)}):
            nodes = torch.arange(D, device=self.device).expand(B, D).contiguous()
            counts = torch.full((B,), length, device=self.device)
            path = accepted._replace(walk=Walk(nodes, counts, accepted.walk.bonus))
            work[f"commit of {length}"] = partial(steps.commit, found, path)
        return {
            name: measure(graphed(one, self.device), self.device, runs=runs, before=rewind)
            for name, one in work.items()
        }
