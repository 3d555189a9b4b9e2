"""Kernels run on the GPU where there is one, else on the CPU under Triton's interpreter.

Triton decides at its import which of the two a process gets, so this must come before any test
that imports it. Where one of them did already, the tests here would compile for a GPU that is not
there; they say so instead.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("triton was imported before tests/engine/kernels could ask for its interpreter")
    return torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def untraced_interpreter(device: torch.device) -> Iterator[None]:
    """Coverage rests while the interpreter runs a kernel, and sees what launches it.

    The interpreter makes thousands of calls a block, each of which a tracer looks at: tests take
    two to three times as long. A kernel's lines are not measured (`exclude_also` in the
    configuration): on a GPU they are compiled, and what the interpreter runs is a copy.
    """
    if device.type == "cuda":
        yield
        return
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def untraced(self: GridExecutor, *arguments: Any, **options: Any) -> Any:
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            return launch(self, *arguments, **options)
        finally:
            sys.settrace(trace)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", untraced)
        yield


@pytest.fixture(scope="session")
def half(device: torch.device) -> torch.dtype:
    """A half precision whose products can be had: the interpreter multiplies bfloat16 wrongly."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16


@pytest.fixture(autouse=True)
def arithmetic_of_a_gpu() -> Iterator[None]:
    """The interpreter computes with numpy, which warns of NaN and infinity; a GPU does not."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        yield
