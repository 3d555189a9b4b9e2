"""Times of work that is launched again and again."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from ddtree_engine.captured_graph import CapturedGraph

WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of some runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure that is reported."""
        return statistics.median(self.runs)


def graphed(work: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Return `work` as a CUDA graph; on a CPU `work` itself. It has run twice before."""
    work()
    work()
    if device.type != "cuda":
        return work
    return CapturedGraph(work, device)


def measure(
    work: Callable[[], Any],
    device: torch.device,
    *,
    runs: int,
    before: Callable[[], Any] = lambda: None,
) -> Timing:
    """Time `work`, after some runs that are not counted.

    Args:
        work: launched `runs` times.
        device: on a GPU the runs are launched behind one another, so that it never waits for the
            host, and are timed by its own clock.
        runs: how many count.
        before: what precedes each run, untimed.
    """
    times = []
    if device.type != "cuda":
        for _ in range(WARM_UPS + runs):
            before()
            begin = perf_counter()
            work()
            times.append((perf_counter() - begin) * 1e3)
        return Timing(tuple(times[WARM_UPS:]))
    marks = []
    with torch.cuda.device(device):
        for _ in range(WARM_UPS + runs):
            before()
            pair = [torch.Event("cuda", enable_timing=True) for _ in range(2)]
            pair[0].record()
            work()
            pair[1].record()
            marks.append(pair)
        torch.cuda.synchronize(device)
    return Timing(tuple(begin.elapsed_time(end) for begin, end in marks[WARM_UPS:]))
