"""Work as a CUDA graph: launched as a whole, on the memory that it was captured with."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


class CapturedGraph(Generic[Result]):
    """A call of `work` that can be repeated without Python. Each fills the same result."""

    def __init__(self, work: Callable[[], Result], device: torch.device, pool: Any = None) -> None:
        """Capture a call; none of it is done yet.

        Args:
            work: has run before, so that all its kernels are compiled; waits for nothing.
            device: the GPU that it runs on.
            pool: memory to share with other graphs, of `torch.cuda.graph_pool_handle`. They then
                run one after the other, and each overwrites the results of the others.

        Raises:
            torch.OutOfMemoryError: there is no memory for its tensors.
        """
        # A graph knows addresses: what it reads must live as long as it does.
        self._work, self._device = work, device
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), _garbage_kept():
            torch.cuda.synchronize()
            with torch.cuda.graph(self._graph, pool=pool):
                self._result = work()

    def __call__(self) -> Result:
        """Launch it on the current stream of its device."""
        with torch.cuda.device(self._device):
            self._graph.replay()
        return self._result


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Nothing is collected meanwhile: an older graph among it must not end during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
