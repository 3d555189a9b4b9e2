"""What a deployment takes of a device's memory, worked out before any of it is reserved."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddtree_engine.config import DrafterConfig, TargetConfig
from ddtree_engine.errors import CapacityError
from ddtree_engine.sequence import PREFILL_CHUNK

GIB = 1 << 30
RUNTIME_BYTES = GIB
"""CUDA's context, its libraries' workspaces and the captured graphs."""
CHUNK = 64
"""Tokens that `chunk_gdn` takes together."""
SORTED_ROWS = 7
"""Rows of logits that `choose_nodes` sorts at most."""
FRAGMENTS = 1.03
"""How much more than asked for an allocator holds."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose.

    Attributes:
        weights: target, and drafter if there is one.
        caches: keys and values, of the drafter too, recurrent states and convolution tails, for all
            requests at their longest.
        verification: what one round keeps of every node until it is known which are accepted.
        workspace: other activations of one round, logits above all; twice, since a captured round
            has memory of its own; and those of a piece of a prompt.
    """

    weights: int
    caches: int
    verification: int
    workspace: int

    @property
    def total(self) -> int:
        """All of it, with what the runtime itself takes."""
        planned = self.weights + self.caches + self.verification + self.workspace
        return int(planned * FRAGMENTS) + RUNTIME_BYTES

    def check(self, free: int, total: int) -> None:
        """Refuse what cannot fit.

        Args:
            free: bytes of the device that nothing uses yet.
            total: bytes of the device.

        Raises:
            CapacityError: it does not fit; with all numbers.
        """
        if self.total > free:
            needed, there = gibibytes(self.total), f"{gibibytes(free)} of {gibibytes(total)}"
            raise CapacityError(
                f"{needed} are needed and {there} are free: "
                f"weights {gibibytes(self.weights)}, caches {gibibytes(self.caches)}, "
                f"trees in verification {gibibytes(self.verification)}, "
                f"workspace {gibibytes(self.workspace)}, runtime and "
                f"fragments {gibibytes(self.total - self._planned)}",
                hint="ask for fewer requests at once, a shorter context or a smaller budget",
            )

    @property
    def _planned(self) -> int:
        return self.weights + self.caches + self.verification + self.workspace


def gibibytes(count: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{count / GIB:.2f} GiB"


def state_bytes(config: TargetConfig, dtype: torch.dtype) -> int:
    """Recurrent states (float32) and convolution tails of a request."""
    linear = config.linear
    if linear is None:
        return 0
    recurrent = linear.num_value_heads * linear.key_head_dim * linear.value_head_dim * 4
    tail = linear.conv_dim * (linear.conv_kernel - 1) * dtype.itemsize
    return len(config.linear_layers) * (recurrent + tail)


def kv_bytes(config: TargetConfig | DrafterConfig, dtype: torch.dtype) -> int:
    """Keys and values of a token."""
    layers = len(config.full_layers) if isinstance(config, TargetConfig) else config.num_layers
    return layers * 2 * config.num_kv_heads * config.head_dim * dtype.itemsize


def cache_bytes(
    target: TargetConfig, drafter: DrafterConfig | None, rows: int, length: int, dtype: torch.dtype
) -> int:
    """Caches of so many requests of `length` tokens, the drafter's too."""
    per_token = kv_bytes(target, dtype) + (kv_bytes(drafter, dtype) if drafter else 0)
    return rows * (length * per_token + state_bytes(target, dtype))


def node_bytes(config: TargetConfig, dtype: torch.dtype) -> int:
    """What a verify pass keeps of a node for the commit: no state, whatever the tree."""
    kept = kv_bytes(config, dtype)
    if config.linear is not None:
        gates = 2 * config.linear.num_value_heads * 4
        kept += len(config.linear_layers) * (config.linear.conv_dim * dtype.itemsize + gates)
    return kept


def piece_bytes(
    target: TargetConfig, drafter: DrafterConfig | None, tokens: int, dtype: torch.dtype
) -> int:
    """What a piece of a prompt takes while it runs: activations, and the states after it."""
    linear = target.linear
    recurrence = 0
    if linear is not None:
        # `chunk_gdn` with PyTorch, in float32: a head's matrices of chunk by chunk and of chunk by
        # channel that live at once, as counted, and of channel by channel for each chunk. A
        # library's kernels take less.
        dk, dv = linear.key_head_dim, linear.value_head_dim
        floats = 11 * CHUNK + 8 * (dk + dv) + 3 * dk * (dk + dv) // CHUNK
        chunks = -(-tokens // CHUNK)
        recurrence = chunks * CHUNK * linear.num_value_heads * floats * 4
    activations = tokens * _hidden_bytes(target, drafter, dtype)
    return activations + recurrence + state_bytes(target, dtype)


def _hidden_bytes(target: TargetConfig, drafter: DrafterConfig | None, dtype: torch.dtype) -> int:
    """Activations of a token: of its MLP, its residual stream, and what the drafter takes."""
    features = len(drafter.target_layer_ids) + 1 if drafter is not None else 1
    return (4 * target.intermediate_size + features * target.hidden_size) * dtype.itemsize


def plan_memory(
    target: TargetConfig,
    drafter: DrafterConfig | None,
    *,
    weights: int,
    rows: int,
    context: int,
    budget: int,
    dtype: torch.dtype,
    sampled: bool = True,
) -> MemoryPlan:
    """Plan for requests that all run at once at their longest.

    Args:
        target: shape of the target.
        drafter: shape of the drafter, if there is one.
        weights: bytes of both models' weights.
        rows: requests at once.
        context: tokens of a request.
        budget: nodes of the largest tree besides the root.
        dtype: of weights, activations and keys and values.
        sampled: whether requests may have a temperature.
    """
    size = dtype.itemsize
    block = 1 if drafter is None else drafter.block_size
    nodes = rows * (max(budget, block - 1) + 1 if drafter is not None else 1)
    room = context + 2 * block
    logits = (nodes + rows * (block - 1)) * target.vocab_size * size
    if sampled:
        # Noise of every depth in float32; a few rows with filters are sorted, and theirs is made
        # from words of 64 bits.
        logits += rows * block * target.vocab_size * 4
        logits += min(nodes, SORTED_ROWS) * target.vocab_size * 96
    hidden = _hidden_bytes(target, drafter, dtype)
    # Pieces of prompts run outside the graphs, which keep what they have between two rounds.
    piece = piece_bytes(target, drafter, min(PREFILL_CHUNK, context), dtype)
    return MemoryPlan(
        weights=weights,
        caches=cache_bytes(target, drafter, rows, room, dtype),
        verification=nodes * node_bytes(target, dtype),
        workspace=2 * (logits + nodes * hidden) + piece,
    )
