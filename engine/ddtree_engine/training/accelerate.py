"""Where and in what precision training runs, and compiling it with a way back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from subprocess import SubprocessError

import torch
from torch import Tensor, nn

_LOG = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        # TF32 for what stays in fp32 under autocast: the chunked recurrence.
        torch.set_float32_matmul_precision("high")
    return device


def autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bf16 matrix products on a GPU; on a CPU everything stays fp32."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def eager() -> contextlib.AbstractContextManager[object]:
    """Runs compiled modules uncompiled: for evaluations, whose shapes are worth no compilation."""
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def compiled_objective(
    objective: Callable[[int], Tensor],
    model: nn.Module,
    modules: Iterable[nn.Module],
    *,
    enabled: bool,
) -> Callable[[int], Tensor]:
    """Compiles ``modules`` in place, and returns ``objective``, safe against a failing compiler.

    If the first step (forward and backward) fails with the compiled modules, everything runs
    uncompiled from then on. That trial leaves no gradient in ``model`` and no trace in the random
    numbers.
    """
    if not enabled:
        return objective
    for module in modules:
        module.compile(dynamic=False)
    tried = False

    def guarded(step: int) -> Tensor:
        nonlocal tried
        if not tried:
            tried = True
            try:
                objective(step).backward()  # type: ignore[no-untyped-call]
            except (RuntimeError, OSError, SubprocessError):
                _LOG.warning("compilation failed; training goes on uncompiled", exc_info=True)
                torch.compiler.set_stance("force_eager")
            model.zero_grad(set_to_none=True)
            torch.manual_seed(torch.initial_seed())
        return objective(step)

    return guarded
