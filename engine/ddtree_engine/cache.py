"""What a running request has committed: attention rows, convolution tails, recurrent states.

Every tensor has a row for each request that can run at once. A verify pass only reads them, and
`commit` appends what it found. A piece of a prompt writes its keys and values behind the committed
ones as it goes, where nobody looks, and the rest with `settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddtree_engine.config import DrafterConfig, TargetConfig
from ddtree_engine.norm import L2_EPS
from ddtree_engine.ops.conv_commit import conv_commit
from ddtree_engine.ops.gdn_commit import gdn_commit
from ddtree_engine.ops.kv_commit import kv_commit


@dataclass(slots=True)
class Stash:
    """What the nodes of one verify pass would add to the cache, a list entry a layer.

    Attributes:
        attention_keys: [B, N, HKV, d] of each full-attention layer, rotated.
        attention_values: [B, N, HKV, d]
        log_decays: [B, N, HV] of each recurrent layer.
        strengths: [B, N, HV]
        conv_inputs: [LR, B, N, C] of all recurrent layers, before the convolution. Keys and values
            follow from them, so the commit makes those of the accepted path anew.
    """

    attention_keys: list[Tensor] = field(default_factory=list)
    attention_values: list[Tensor] = field(default_factory=list)
    log_decays: list[Tensor] = field(default_factory=list)
    strengths: list[Tensor] = field(default_factory=list)
    conv_inputs: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Memory that the tensors keep from being reused."""
        tensors = [*self.attention_keys, *self.attention_values, *self.log_decays, *self.strengths]
        if self.conv_inputs is not None:
            tensors.append(self.conv_inputs)
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in tensors
        }
        return sum(storages.values())


@dataclass(frozen=True, slots=True)
class Piece:
    """What a piece of a prompt adds to a row of the cache, beside keys and values.

    Attributes:
        tails: [LR, K-1, C] last inputs of the convolution of the recurrent layers.
        states: [1, HV, dk, dv] of each recurrent layer.
    """

    tails: Tensor
    states: list[Tensor]


@dataclass(frozen=True, slots=True)
class Paths:
    """The accepted nodes of each request.

    Attributes:
        lengths: [B] int64, how many: 0 commits nothing.
        nodes: [B, D] int64, their indices; past the end of a shorter path, index 0.
    """

    lengths: Tensor
    nodes: Tensor

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]], device: torch.device) -> Paths:
        """Lay out one list of node indices a request."""
        longest = max(len(path) for path in paths)
        return cls(
            lengths=torch.tensor([len(path) for path in paths], device=device),
            nodes=torch.tensor(
                [list(path) + [0] * (longest - len(path)) for path in paths], device=device
            ),
        )


class TargetCache:
    """The committed state of the target, for R requests of up to T tokens.

    Attributes:
        keys, values: [LA, R, T, HKV, d] of the LA full-attention layers.
        tails: [LR, R, K-1, C] last inputs of the convolution of the LR recurrent layers, oldest
            first.
        states: [LR, R, HV, dk, dv] float32.
        lengths: committed tokens of each row, as far as the host knows.
        unread: how many more the device may have committed since.
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
        self.key_heads = 0 if linear is None else linear.num_key_heads
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
        self.unread = 0

    def reset(self, row: int) -> None:
        """Empty a row for a new request."""
        self.lengths[row] = 0
        self.tails[:, row] = 0
        self.states[:, row] = 0

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        if a == b:
            return
        T = min(self.keys.shape[2], max(self.lengths[a], self.lengths[b]) + self.unread)
        pair, reverse = [a, b], [b, a]
        self.keys[:, pair, :T] = self.keys[:, reverse, :T]
        self.values[:, pair, :T] = self.values[:, reverse, :T]
        self.tails[:, pair] = self.tails[:, reverse]
        self.states[:, pair] = self.states[:, reverse]
        self.lengths[a], self.lengths[b] = self.lengths[b], self.lengths[a]

    def commit(
        self, stash: Stash, paths: Paths, rows: slice, starts: Tensor, filters: Tensor | None
    ) -> None:
        """Append the accepted path of each request in `rows` and nothing else of its tree.

        Nothing waits for the device; `lengths` is the caller's to advance. Where memory runs out,
        nothing is appended.

        Args:
            stash: of the pass over the trees.
            paths: the accepted nodes.
            rows: the requests' rows.
            starts: [B] int64, committed tokens of each, on the device.
            filters: [LR, C, K] of the recurrent layers' convolutions, if there are any.
        """
        if stash.attention_keys:
            kv_commit(
                torch.stack(stash.attention_keys),
                torch.stack(stash.attention_values),
                paths.nodes,
                paths.lengths,
                starts,
                self.keys[:, rows],
                self.values[:, rows],
            )
        if stash.conv_inputs is not None and filters is not None:
            kept_states, kept_tails = self.states[:, rows], self.tails[:, rows]
            states, tails = kept_states, kept_tails
            if not states.is_cuda:
                # PyTorch's forms take memory between one change and the next; kernels take none.
                states, tails = states.clone(), tails.clone()
            gdn_commit(
                stash.conv_inputs,
                tails,
                filters,
                torch.stack(stash.log_decays),
                torch.stack(stash.strengths),
                paths.nodes,
                paths.lengths,
                states,
                key_heads=self.key_heads,
                eps=L2_EPS,
            )
            conv_commit(stash.conv_inputs, paths.nodes, paths.lengths, tails)
            if states is not kept_states:
                kept_states.copy_(states)
                kept_tails.copy_(tails)

    def settle(self, piece: Piece, row: int) -> None:
        """Append a piece of a prompt, whose keys and values are there already.

        Takes no memory, so it is done or not begun; `lengths` is the caller's to advance.
        """
        if piece.states:
            self.tails[:, row] = piece.tails
            torch._foreach_copy_(list(self.states[:, row : row + 1]), piece.states)

    def advance(self, row: int, count: int) -> None:
        """Note that `count` tokens of a row have been committed."""
        self.lengths[row] += count


class DrafterCache:
    """Keys and values that the drafter computed from the target's features, one row a request.

    Attributes:
        keys, values: [L, R, T, HKV, d].
        lengths, unread: as in `TargetCache`.
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
        self.unread = 0

    def reset(self, row: int) -> None:
        """Empty a row for a new request."""
        self.lengths[row] = 0

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        if a == b:
            return
        T = min(self.keys.shape[2], max(self.lengths[a], self.lengths[b]) + self.unread)
        pair, reverse = [a, b], [b, a]
        self.keys[:, pair, :T] = self.keys[:, reverse, :T]
        self.values[:, pair, :T] = self.values[:, reverse, :T]
        self.lengths[a], self.lengths[b] = self.lengths[b], self.lengths[a]

    def append(
        self, keys: Tensor, values: Tensor, counts: Tensor, rows: slice, starts: Tensor
    ) -> None:
        """Append keys and values of the accepted tokens of each request.

        Nothing waits for the device; `lengths` is the caller's to advance.

        Args:
            keys: [L, B, D, HKV, d]
            values: [L, B, D, HKV, d]
            counts: [B] int64, how many of the D are accepted.
            rows: the requests' rows.
            starts: [B] int64, committed tokens of each, on the device.
        """
        B, D = keys.shape[1:3]
        steps = torch.arange(D, device=keys.device).expand(B, D)
        kv_commit(keys, values, steps, counts, starts, self.keys[:, rows], self.values[:, rows])

    def append_piece(self, keys: Tensor, values: Tensor, row: int) -> None:
        """Append those of a piece of a prompt, [L, 1, T, HKV, d]; `lengths` is the caller's."""
        start = self.lengths[row]
        self.keys[:, row, start : start + keys.shape[2]] = keys[:, 0]
        self.values[:, row, start : start + values.shape[2]] = values[:, 0]

    def advance(self, row: int, count: int) -> None:
        """Note that `count` tokens of a row have been appended."""
        self.lengths[row] += count
