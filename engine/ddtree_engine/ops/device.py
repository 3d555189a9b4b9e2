"""Which form of an op runs where: Triton kernels on a GPU, PyTorch on everything else.

Triton compiles a kernel anew for an integer that is 1, and for one that is a multiple of 16. What
changes from round to round (`do_not_specialize` in the kernels) must not do that: a request would
wait for a compiler.

Triton launches on the current GPU, wherever the tensors are, so an op makes theirs the current one.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What the kernels read; they accumulate in float32, so float64 stays with PyTorch."""


@cache
def triton_installed() -> bool:
    """Whether kernels can be compiled at all; Triton comes with PyTorch's CUDA builds only."""
    return find_spec("triton") is not None


def on_gpu(*tensors: Tensor) -> bool:
    """Whether a kernel can take these tensors, whatever their dtype: all are on a GPU."""
    return triton_installed() and all(tensor.is_cuda for tensor in tensors)


def runs_kernel(*tensors: Tensor | None) -> bool:
    """Whether a kernel can take these tensors: all on one GPU, in a dtype that kernels read.

    None is an optional one that is not there. Kernels have no gradients, so what is trained goes
    through PyTorch.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return False
    return on_gpu(*given) and all(tensor.dtype in KERNEL_DTYPES for tensor in given)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one thread block of the GPU can have.

    228 KiB less a little on data centre GPUs since Hopper, 99 KiB on consumer ones (SM 8.6, 8.9
    and 12.0).
    """
    if device.type != "cuda":  # the interpreter has no limit
        return 1 << 20
    properties: Any = torch.cuda.get_device_properties(device)  # the stubs lack the field
    return int(properties.shared_memory_per_block_optin)


@cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors the GPU has; 1 for the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
