"""The gated delta rule in chunks by the kernels of flash-linear-attention (`fla-core`, MIT).

Their first call on a host measures which tilings are fastest, half a minute on an H200.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version

from torch import Tensor

_LOG = logging.getLogger(__name__)

VERSIONS = ((0, 6), (0, 7))
"""The first that is known to work, and the first that is not: as in the extra `fla`."""
TRITON = (3, 3)
"""The oldest that it works with."""
HEAD_DIMS = (64, 128, 256)
"""Of keys and of values: whole tiles of the kernels."""

Kernels = Callable[..., tuple[Tensor, Tensor]]


def chunk_gdn(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """See `vectorized.chunk_gdn`, in half precision, on a GPU, and without gradients.

    Returns:
        ``o [B, T, HV, dv]`` in `v`'s dtype and the final state in fp32; None where the library
        cannot be used.
    """
    if not takes(q, k, v):
        return None
    kernels = load()
    if kernels is None:
        return None
    return kernels(
        q,
        k,
        v,
        g.float(),
        beta.float(),
        scale=1.0,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=True,
    )


def takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels are used for these heads."""
    same = q.dtype == k.dtype == v.dtype
    return same and k.shape[-1] in HEAD_DIMS and v.shape[-1] in HEAD_DIMS


@cache
def load() -> Kernels | None:
    """The library's function; None if it is not installed or not fit to be used, which is logged.

    It takes seconds to import, so it is only where it is called.
    """
    try:
        installed, triton = version("fla-core"), str(import_module("triton").__version__)
        if not VERSIONS[0] <= _numbers(installed) < VERSIONS[1] or _numbers(triton) < TRITON:
            raise ImportError(f"fla-core {installed} with Triton {triton} is not known to work")
        logging.getLogger("fla").setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernels: Kernels = import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    except Exception as error:  # noqa: BLE001 - whatever another package's import may raise
        _LOG.warning(
            "prompts are read more slowly without flash-linear-attention "
            "(pip install 'ddtree-engine[fla]'): %s",
            error,
        )
        return None
    return kernels


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
