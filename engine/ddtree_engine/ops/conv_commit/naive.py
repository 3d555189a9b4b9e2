"""The specification of `conv_commit`: the last rows of one sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def conv_commit(inputs: Tensor, nodes: Tensor, path_lengths: Tensor, tails: Tensor) -> None:
    """Move the accepted path of each request into the tail of its convolution, in place.

    Args:
        inputs: [L, B, N, C] of all nodes of each tree, in every recurrent layer.
        nodes: [B, D] int64, the accepted path.
        path_lengths: [B] int64, nodes of it, from 0 to D; what lies past them is ignored.
        tails: [L, B, K-1, C] the last committed inputs, oldest first; modified.
    """
    for layer in range(inputs.shape[0]):
        for b in range(inputs.shape[1]):
            path = nodes[b, : int(path_lengths[b])]
            history = torch.cat([tails[layer, b], inputs[layer, b, path]])
            tails[layer, b] = history[len(path) :]
