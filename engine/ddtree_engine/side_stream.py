"""Work beside the stream that launches everything else: what reads memory beside what waits.

A product spends its time reading its weight, a recurrence spends it on steps that wait for each
other; beside one another they take as long as the longer one. Inside a CUDA graph such work is a
branch of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def beside(work: Callable[[], object], device: torch.device) -> Iterator[None]:
    """Run `work` beside what the body launches; what it reads must be there already.

    What it wrote is there after the body, and however the body ends: memory that an error lets go
    of is not in use any more, and a branch of a graph has come back.

    Args:
        work: launches on one GPU. What it writes, and what it reads, lives until the body's end.
        device: of that work; on a CPU it is done at once.
    """
    if device.type != "cuda":
        work()
        yield
        return
    here, side = torch.cuda.current_stream(device), _stream(device)
    side.wait_stream(here)
    try:
        with torch.cuda.stream(side):
            work()
        yield
    finally:
        here.wait_stream(side)
