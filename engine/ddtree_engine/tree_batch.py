"""The trees of one round as tensors: what a verify pass has to know of their shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddtree_engine.tree import DraftTree


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """B trees, padded to the N nodes of the largest.

    A padding node is a leaf below the root: no real node sees it, and no walk reaches it.

    Attributes:
        tokens: [B, N] int64.
        depths: [B, N] int64; the root has depth 0.
        ancestors: [B, N, N] bool, [i, j] true where j is i or an ancestor of i.
        recurrent_ancestors: the same as the recurrent layers see it; another mask than `ancestors`
            only in the experiment that leaks state between siblings.
        taps: [B, N, K] int64, oldest first: where node i's convolution looks, as rows of the K-1
            committed inputs followed by the nodes' own.
    """

    tokens: Tensor
    depths: Tensor
    ancestors: Tensor
    recurrent_ancestors: Tensor
    taps: Tensor

    @classmethod
    def from_trees(
        cls,
        trees: Sequence[DraftTree],
        *,
        conv_kernel: int,
        device: torch.device,
        leak: bool = False,
    ) -> TreeBatch:
        """Pad `trees` and lay them out on `device`.

        With `leak`, the recurrent layers take the nodes in flattened order, as if each were the
        child of the one before it: the shortcut whose cost `--recurrent-state leak` measures.
        """
        B, N = len(trees), max(len(tree.tokens) for tree in trees)
        tokens = np.zeros((B, N), dtype=np.int64)
        depths = np.zeros((B, N), dtype=np.int64)
        parents = np.zeros((B, N), dtype=np.int64)
        ancestors = np.zeros((B, N, N), dtype=bool)
        taps = np.empty((B, N, conv_kernel), dtype=np.int64)
        for b, tree in enumerate(trees):
            size = len(tree.tokens)
            tokens[b, :size] = tree.tokens
            parents[b, :size] = tree.parents
            for i in range(N):
                parent = int(parents[b, i]) if i < size else 0
                if i:
                    ancestors[b, i] = ancestors[b, parent]
                    depths[b, i] = depths[b, parent] + 1
                    taps[b, i, :-1] = taps[b, parent, 1:]
                else:
                    taps[b, i, :-1] = np.arange(conv_kernel - 1)
                taps[b, i, -1] = conv_kernel - 1 + i
                ancestors[b, i, i] = True
        seen = torch.from_numpy(ancestors).to(device)
        recurrent = seen
        look = torch.from_numpy(taps)
        if leak:
            recurrent = torch.ones_like(seen).tril()
            look = chain_taps(N, conv_kernel).expand(B, N, conv_kernel)
        return cls(
            tokens=torch.from_numpy(tokens).to(device),
            depths=torch.from_numpy(depths).to(device),
            ancestors=seen,
            recurrent_ancestors=recurrent,
            taps=look.to(device),
        )

    @classmethod
    def chain(cls, tokens: Tensor, *, conv_kernel: int) -> TreeBatch:
        """Return the batch in which every node is the child of the one before; `tokens` [B, N]."""
        B, N = tokens.shape
        causal = torch.ones(N, N, dtype=torch.bool, device=tokens.device).tril().expand(B, N, N)
        return cls(
            tokens=tokens,
            depths=torch.arange(N, device=tokens.device).expand(B, N),
            ancestors=causal,
            recurrent_ancestors=causal,
            taps=chain_taps(N, conv_kernel, tokens.device).expand(B, N, conv_kernel),
        )


def chain_taps(nodes: int, conv_kernel: int, device: torch.device | None = None) -> Tensor:
    """Taps [N, K] of a chain of so many nodes."""
    first = torch.arange(nodes, device=device)
    return first[:, None] + torch.arange(conv_kernel, device=device)
