"""The result of `tree_walk`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Walk(NamedTuple):
    """What each request of a round accepted.

    Attributes:
        nodes: [B, depth + 1] int64, the accepted path from the root on; past its end, node 0.
        lengths: [B] int64, nodes of the path, at least 1.
        bonus: [B] int64, the target's choice after the last node of the path.
    """

    nodes: Tensor
    lengths: Tensor
    bonus: Tensor
