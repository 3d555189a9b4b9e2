"""The largest steps that requests may ask for, run on nothing before any comes.

What they take stays reserved for the smaller ones, so memory runs out here or, once requests are
admitted, not at all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ddtree_engine.cache_rows import CacheRows
from ddtree_engine.device_memory import and_free, is_shortage
from ddtree_engine.errors import CapacityError
from ddtree_engine.round_shapes import RoundShape
from ddtree_engine.sequence import PREFILL_CHUNK


@torch.inference_mode()
def rehearse(
    largest: RoundShape,
    rows: CacheRows,
    append: Callable[[Tensor, int], None],
    prepare: Callable[[RoundShape], object],
) -> None:
    """Run the largest piece of a prompt and the largest round; neither leaves anything behind.

    Args:
        largest: shape of the round.
        rows: with no request in them.
        append: commits a piece [1, N] to a row.
        prepare: runs a round of a shape.

    Raises:
        CapacityError: there is not enough memory.
    """
    assert not rows.sequences, "the rows are empty"
    room, device = rows.cache.max_length, rows.state.lengths.device
    size = min(PREFILL_CHUNK, room)
    step = f"a piece of {size} tokens of a prompt with {room - size} before them"
    try:
        tokens = torch.zeros(1, size, dtype=torch.int64, device=device)
        # At the end of the longest prompt, where it has the most before it.
        start = room - size
        for cache in rows.caches:
            cache.lengths[0] = start
        append(tokens, 0)
        for cache in rows.caches:
            cache.reset(0)
            cache.keys[:, 0, start:] = 0
            cache.values[:, 0, start:] = 0
        step = (
            f"a round of {largest.rows} requests with {largest.budget} nodes each and {room} "
            "tokens before them"
        )
        prepare(largest)
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        raise CapacityError(
            f"there is no memory for {step}{and_free(device)}",
            hint="ask for fewer requests at once, a smaller budget or a shorter context",
        ) from error
