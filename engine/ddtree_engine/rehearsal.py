"""The largest steps that requests may ask for, run on nothing before any comes.

What they take stays reserved for the smaller ones, so memory runs out here or, once requests are
admitted, not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch

from ddtree_engine.cache_rows import CacheRows
from ddtree_engine.device_memory import and_free, is_shortage
from ddtree_engine.errors import CapacityError
from ddtree_engine.round_shapes import RoundShape
from ddtree_engine.sequence import PREFILL_CHUNK
from ddtree_engine.target import TargetModel
from ddtree_engine.tree_batch import TreeBatch


@torch.inference_mode()
def rehearse(
    largest: RoundShape,
    rows: CacheRows,
    target: TargetModel,
    feature_layers: SequenceOf[int],
    prepare: Callable[[RoundShape], object],
) -> None:
    """Run the largest piece of a prompt and the largest round; neither commits anything.

    Args:
        largest: shape of the round.
        rows: with no request in them.
        target: takes the piece.
        feature_layers: those whose residual streams are kept.
        prepare: runs a round of a shape.

    Raises:
        CapacityError: there is not enough memory.
    """
    assert not rows.sequences, "the rows are empty"
    room, device = rows.cache.max_length, rows.state.lengths.device
    try:
        tokens = torch.zeros(1, min(PREFILL_CHUNK, room), dtype=torch.int64, device=device)
        target.verify(
            TreeBatch.chain(tokens, conv_kernel=target.conv_kernel),
            rows.cache,
            slice(0, 1),
            feature_layers,
            lengths=rows.state.lengths[:1],
            context=room,
        )
        prepare(largest)
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        raise CapacityError(
            f"there is no memory for a round of {largest.rows} requests with {largest.budget} "
            f"nodes each and {room} tokens before them{and_free(device)}",
            hint="ask for fewer requests at once, a smaller budget or a shorter context",
        ) from error
