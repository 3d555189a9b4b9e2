"""What is said where a device has no memory left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ddtree_engine.errors import OutOfMemoryError
from ddtree_engine.memory_plan import gibibytes


def and_free(device: torch.device) -> str:
    """The end of a message that says what there is; empty where nobody can tell."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f", and {gibibytes(free)} of {gibibytes(total)} are free"


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory has run out; PyTorch has no type for that of a CPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: " in str(error)


@contextmanager
def step_within_memory(requests: int, device: torch.device) -> Iterator[None]:
    """A step of so many requests.

    Raises:
        OutOfMemoryError: the device has no memory for it.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        raise OutOfMemoryError(
            f"there is no memory for a step of {requests} requests{and_free(device)}",
            hint="serve with a smaller --max-running or --max-context, or free the device",
        ) from error
