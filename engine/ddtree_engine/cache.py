"""What a running request has committed: attention rows, convolution tails, recurrent states.

Every tensor has a row for each request that can run at once. A verify pass only reads them;
`commit` is the one place where they change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddtree_engine.config import DrafterConfig, TargetConfig
from ddtree_engine.ops.state_commit import state_commit


@dataclass(slots=True)
class Stash:
    """What the nodes of one verify pass would add to the cache, a list entry a layer.

    Attributes:
        attention_keys: [B, N, HKV, d] of each full-attention layer, rotated.
        attention_values: [B, N, HKV, d]
        conv_inputs: [B, N, C] of each recurrent layer, before the convolution.
        keys: [B, N, HK, dk] l2-normalised, of each recurrent layer.
        values: [B, N, HV, dv]
        log_decays: [B, N, HV]
        strengths: [B, N, HV]
    """

    attention_keys: list[Tensor] = field(default_factory=list)
    attention_values: list[Tensor] = field(default_factory=list)
    conv_inputs: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    log_decays: list[Tensor] = field(default_factory=list)
    strengths: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Paths:
    """The accepted nodes of each request, as index tensors made once for all layers.

    Attributes:
        lengths: [B] int64, accepted nodes of each request (at least 1: the root).
        nodes: [B, D] int64, their indices; past the end of a shorter path, index 0.
        request, node, step: [M] int64, the same without padding, for all requests in turn.
    """

    lengths: Tensor
    nodes: Tensor
    request: Tensor
    node: Tensor
    step: Tensor

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]], device: torch.device) -> Paths:
        """Lay out one list of node indices a request."""
        longest = max(len(path) for path in paths)
        flat = [(b, i, t) for b, path in enumerate(paths) for t, i in enumerate(path)]
        request, node, step = torch.tensor(flat, device=device).unbind(1)
        return cls(
            lengths=torch.tensor([len(path) for path in paths], device=device),
            nodes=torch.tensor(
                [list(path) + [0] * (longest - len(path)) for path in paths], device=device
            ),
            request=request,
            node=node,
            step=step,
        )


class TargetCache:
    """The committed state of the target, for R requests of up to T tokens.

    Attributes:
        keys, values: [LA, R, T, HKV, d] of the LA full-attention layers.
        tails: [LR, R, K-1, C] last inputs of the convolution of the LR recurrent layers, oldest
            first.
        states: [LR, R, HV, dk, dv] float32.
        lengths: committed tokens of each row.
    """

    def __init__(
        self,
        config: TargetConfig,
        *,
        rows: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (len(config.full_layers), rows, max_length, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        linear, layers = config.linear, len(config.linear_layers)
        if linear is None:
            self.tails = torch.zeros(0, rows, 0, 0, dtype=dtype, device=device)
            self.states = torch.zeros(0, rows, 0, 0, 0, dtype=state_dtype, device=device)
        else:
            self.tails = torch.zeros(
                layers, rows, linear.conv_kernel - 1, linear.conv_dim, dtype=dtype, device=device
            )
            self.states = torch.zeros(
                (layers, rows, linear.num_value_heads, linear.key_head_dim, linear.value_head_dim),
                dtype=state_dtype,
                device=device,
            )
        self.max_length = max_length
        self.lengths = [0] * rows

    def reset(self, row: int) -> None:
        """Empty a row for a new request."""
        self.lengths[row] = 0
        self.tails[:, row] = 0
        self.states[:, row] = 0

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        if a == b:
            return
        T = max(self.lengths[a], self.lengths[b])
        pair, reverse = [a, b], [b, a]
        self.keys[:, pair, :T] = self.keys[:, reverse, :T]
        self.values[:, pair, :T] = self.values[:, reverse, :T]
        self.tails[:, pair] = self.tails[:, reverse]
        self.states[:, pair] = self.states[:, reverse]
        self.lengths[a], self.lengths[b] = self.lengths[b], self.lengths[a]

    def commit(self, stash: Stash, paths: Paths, rows: slice) -> None:
        """Append the accepted path of each request in `rows` and nothing else of its tree."""
        start = torch.tensor(self.lengths[rows], device=paths.node.device)
        if stash.attention_keys:
            position = start[paths.request] + paths.step
            row = paths.request + rows.start
            keys = torch.stack(stash.attention_keys)
            self.keys[:, row, position] = keys[:, paths.request, paths.node]
            values = torch.stack(stash.attention_values)
            self.values[:, row, position] = values[:, paths.request, paths.node]
        if stash.conv_inputs:
            request = torch.arange(len(paths.lengths), device=start.device)[:, None]
            state_commit(
                torch.stack(stash.keys)[:, request, paths.nodes],
                torch.stack(stash.values)[:, request, paths.nodes],
                torch.stack(stash.log_decays)[:, request, paths.nodes],
                torch.stack(stash.strengths)[:, request, paths.nodes],
                paths.lengths,
                self.states[:, rows],
            )
            inputs = torch.stack(stash.conv_inputs)[:, request, paths.nodes]
            history = torch.cat([self.tails[:, rows], inputs], dim=2)
            last = paths.lengths[:, None] + torch.arange(self.tails.shape[2], device=start.device)
            self.tails[:, rows] = history[:, request, last]
        for offset, length in enumerate(paths.lengths.tolist()):
            self.lengths[rows.start + offset] += length


class DrafterCache:
    """Keys and values that the drafter computed from the target's features, one row a request.

    Attributes:
        keys, values: [L, R, T, HKV, d].
        lengths: tokens of each row.
    """

    def __init__(
        self,
        config: DrafterConfig,
        *,
        rows: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (config.num_layers, rows, max_length, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * rows

    def reset(self, row: int) -> None:
        """Empty a row for a new request."""
        self.lengths[row] = 0

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        if a == b:
            return
        T = max(self.lengths[a], self.lengths[b])
        pair, reverse = [a, b], [b, a]
        self.keys[:, pair, :T] = self.keys[:, reverse, :T]
        self.values[:, pair, :T] = self.values[:, reverse, :T]
        self.lengths[a], self.lengths[b] = self.lengths[b], self.lengths[a]

    def append(self, keys: Tensor, values: Tensor, paths: Paths, rows: slice) -> None:
        """Append [L, B, D, HKV, d] keys and values of the accepted tokens of each request."""
        start = torch.tensor(self.lengths[rows], device=keys.device)
        position = start[paths.request] + paths.step
        row = paths.request + rows.start
        self.keys[:, row, position] = keys[:, paths.request, paths.step]
        self.values[:, row, position] = values[:, paths.request, paths.step]
        for offset, length in enumerate(paths.lengths.tolist()):
            self.lengths[rows.start + offset] += length
