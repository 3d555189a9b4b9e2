"""Which kernels a round is made of, by PyTorch's profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All launches of one kernel in one round.

    Attributes:
        name: of the kernel.
        calls: a round.
        milliseconds: of all calls of a round together.
    """

    name: str
    calls: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Where a round's time goes.

    Attributes:
        kernels: longest first.
        span: milliseconds from the first kernel's begin to the last one's end, a round.
        busy: milliseconds of it in which a kernel ran.
    """

    kernels: list[KernelTime]
    span: float
    busy: float


def profile(work: Callable[[], Any], before: Callable[[], Any], rounds: int) -> Profile:
    """Run a round so often under the profiler."""
    activity: Any = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profiler:
        for _ in range(rounds):
            before()
            work()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events() or []
        if "CUDA" in str(event.device_type) and not event.name.startswith("Activity")
    )
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    busy = 0.0
    reached = spans[0][0] if spans else 0.0
    for begin, end, name in spans:
        totals[name][0] += 1
        totals[name][1] += end - begin
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    span = reached - spans[0][0] if spans else 0.0
    kernels = [
        KernelTime(name, calls / rounds, time / rounds / 1e3)
        for name, (calls, time) in totals.items()
    ]
    kernels.sort(key=lambda one: -one.milliseconds)
    return Profile(kernels, span / rounds / 1e3, busy / rounds / 1e3)
