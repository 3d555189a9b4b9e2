"""What a pair of checkpoints is and what serving it takes, from configs and file headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddtree_engine.config import check_fit
from ddtree_engine.drafter import check_drafter
from ddtree_engine.memory_plan import MemoryPlan, kv_bytes, node_bytes, plan_memory, state_bytes
from ddtree_engine.target import check_target
from ddtree_engine.tokenizer import Tokenizer, check_vocabulary


def inspect_models(model: Path, drafter: Path | None, dtype: torch.dtype) -> dict[str, Any]:
    """Check both folders and describe them.

    Args:
        model: folder of the target.
        drafter: folder of its drafter, or None.
        dtype: of weights, activations and KV cache; the recurrent state is float32 always.

    Returns:
        A JSON-able document with `target` and `drafter` (None without one). Sizes are in bytes:
        `weight_bytes` in `dtype`, `state_bytes_per_request` of the recurrent states and convolution
        tails, `kv_bytes_per_token` of the attention layers, `verification_bytes_per_node` of what a
        round keeps of a tree until it is known which nodes are accepted.

    Raises:
        CheckpointError: a folder is not usable, or the two don't fit.
    """
    found = check_target(model)
    config = found.config
    tokenizer = Tokenizer.load(model)
    check_vocabulary(tokenizer, model, config.vocab_size)
    size = dtype.itemsize
    target = {
        "path": str(model),
        "architecture": config.architecture,
        "parameters": _count(found),
        "weight_bytes": _count(found) * size,
        "dtype": str(dtype).removeprefix("torch."),
        "layers": config.num_layers,
        "recurrent_layers": len(config.linear_layers),
        "attention_layers": len(config.full_layers),
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "tokenizer_tokens": tokenizer.vocab_size,
        "max_context": config.max_position_embeddings,
        "state_bytes_per_request": state_bytes(config, dtype),
        "verification_bytes_per_node": node_bytes(config, dtype),
        "kv_bytes_per_token": kv_bytes(config, dtype),
    }
    if drafter is None:
        return {"target": target, "drafter": None}
    drafted = check_drafter(drafter)
    small = drafted.config
    check_fit(small, config)
    return {
        "target": target,
        "drafter": {
            "path": str(drafter),
            "architecture": small.architecture,
            "parameters": _count(drafted),
            "weight_bytes": _count(drafted) * size,
            "layers": small.num_layers,
            "block_size": small.block_size,
            "mask_token_id": small.mask_token_id,
            "target_layer_ids": list(small.target_layer_ids),
            "kv_bytes_per_token": kv_bytes(small, dtype),
        },
    }


def plan_deployment(
    model: Path, drafter: Path | None, dtype: torch.dtype, *, rows: int, context: int, budget: int
) -> MemoryPlan:
    """Plan the memory of a deployment, from configs and file headers alone.

    Args:
        model: folder of the target.
        drafter: folder of its drafter, or None.
        dtype: as in `inspect_models`.
        rows: requests at once.
        context: tokens of a request.
        budget: nodes of the largest tree besides the root.

    Raises:
        CheckpointError: a folder is not usable.
    """
    target = check_target(model)
    small = None if drafter is None else check_drafter(drafter)
    count = _count(target) + (0 if small is None else _count(small))
    return plan_memory(
        target.config,
        None if small is None else small.config,
        weights=count * dtype.itemsize,
        rows=rows,
        context=context,
        budget=budget,
        dtype=dtype,
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
