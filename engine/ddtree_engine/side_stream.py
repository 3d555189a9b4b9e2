"""Work beside the stream that launches everything else: what reads memory beside what waits.

A product spends its time reading its weight, a recurrence spends it on steps that wait for each
other; beside one another they take as long as the longer one. Inside a CUDA graph such work is a
branch of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def beside(work: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Start `work` beside what follows; what it reads must be there already.

    Args:
        work: launches on one GPU. What it writes, and what it reads, lives until the returned
            function was called.
        device: of that work; on a CPU it is done at once.

    Returns:
        What to call before anything reads what `work` wrote.
    """
    if device.type != "cuda":
        work()
        return lambda: None
    side = _stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
    return lambda: torch.cuda.current_stream(device).wait_stream(side)
