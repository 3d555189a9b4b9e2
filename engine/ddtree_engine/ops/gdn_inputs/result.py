"""The result of `gdn_inputs`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class GdnInputs(NamedTuple):
    """Arguments of `tree_gdn` and `state_commit`.

    Attributes:
        q: [B, N, HK, dk] l2-normalised, scaled by dk**-0.5.
        k: [B, N, HK, dk] l2-normalised.
        v: [B, N, HV, dv]
        g: [B, N, HV] log of the decay.
        beta: [B, N, HV] write strength.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
