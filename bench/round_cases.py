"""Ops that a round runs once, for all layers or none: trees, walk, commits, candidates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.kernel_inputs import BLOCK, Case, Inputs, double, flat, size
from ddtree_engine.ops.conv_commit import kernel as conv_commit
from ddtree_engine.ops.conv_commit import vectorized as conv_commit_torch
from ddtree_engine.ops.draft_trees import kernel as draft_trees
from ddtree_engine.ops.draft_trees import vectorized as draft_trees_torch
from ddtree_engine.ops.gdn_commit import kernel as gdn_commit
from ddtree_engine.ops.gdn_commit import vectorized as gdn_commit_torch
from ddtree_engine.ops.kv_commit import kernel as kv_commit
from ddtree_engine.ops.kv_commit import vectorized as kv_commit_torch
from ddtree_engine.ops.topk_logprob import kernel as topk_logprob
from ddtree_engine.ops.topk_logprob import vectorized as topk_logprob_torch
from ddtree_engine.ops.tree_walk import kernel as tree_walk
from ddtree_engine.ops.tree_walk import vectorized as tree_walk_torch


def commit_case(inputs: Inputs, accepted: int) -> Case:
    """Replay of a path of `accepted` out of 65 nodes in all layers, one launch."""
    one, gates = inputs.shape, (inputs.shape.linear_layers, 1, 65, inputs.shape.value_heads)
    channels = (2 * one.key_heads + one.value_heads) * one.linear_dim
    tensors = {
        "inputs": inputs.randn(one.linear_layers, 1, 65, channels),
        "tails": inputs.randn(one.linear_layers, 1, 3, channels),
        "weight": inputs.randn(one.linear_layers, channels, 4) / 2,
        "g": -inputs.randn(*gates, dtype=torch.float32).exp() / 8,
        "beta": inputs.randn(*gates, dtype=torch.float32).sigmoid(),
        "path_lengths": torch.tensor([accepted], device=inputs.device),
        "nodes": path(inputs)["nodes"],
    }
    states = (one.linear_layers, 1, one.value_heads, one.linear_dim, one.linear_dim)
    state = inputs.randn(*states, dtype=torch.float32)
    exact = state.double()

    def call(op: Callable[..., None], state: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        op(**tensors, state=state, key_heads=one.key_heads, eps=1e-6)
        return state

    return Case(
        f"gdn_commit of {accepted}",
        [partial(call, gdn_commit.gdn_commit, state, tensors)],
        [partial(call, gdn_commit_torch.gdn_commit, state, tensors)],
        lambda: call(gdn_commit_torch.gdn_commit, exact, double(tensors)),
        2 * size(state),
    )


def trees_case(inputs: Inputs, budget: int) -> Case:
    """Trees of one request from a block's candidates, eight a depth."""
    logits = inputs.randn(1, BLOCK - 1, 4096, dtype=torch.float32) * 3
    log_probs, ids = logits.log_softmax(-1).topk(8)
    one = torch.ones(1, dtype=torch.int64, device=inputs.device)
    arguments: dict[str, Any] = {
        "anchors": one,
        "log_probs": log_probs,
        "ids": ids,
        "budgets": budget * one,
        "widths": 8 * one,
        "budget": budget,
        "conv_kernel": 4,
    }
    plain = partial(flat, draft_trees_torch.draft_trees, **arguments)
    return Case(
        f"draft_trees of {budget}",
        [partial(flat, draft_trees.draft_trees, **arguments)] * 8,
        [plain] * 8,
        plain,
        size(log_probs, ids) + (budget + 1) * (budget + 57),
    )


def walk_case(inputs: Inputs, nodes: int) -> Case:
    """The walk down one request's tree, all of whose first children the target chooses."""
    parents = inputs.parents(nodes)
    tokens = torch.arange(nodes)
    choices = torch.full((nodes,), nodes)
    for node in reversed(range(1, nodes)):
        choices[parents[node]] = node
    choices, tokens, above = (
        x[None].to(inputs.device) for x in (choices, tokens, torch.tensor(parents))
    )
    sizes = torch.tensor([nodes], device=inputs.device)
    tensors = {"choices": choices, "tokens": tokens, "parents": above, "sizes": sizes}
    plain = partial(flat, tree_walk_torch.tree_walk, **tensors, depth=BLOCK - 1)
    return Case(
        "tree_walk",
        [partial(flat, tree_walk.tree_walk, **tensors, depth=BLOCK - 1)] * 8,
        [plain] * 8,
        plain,
        size(*tensors.values()),
    )


def path(inputs: Inputs) -> dict[str, Tensor]:
    """An accepted path of a whole block, its nodes apart from each other."""
    return {
        "nodes": 4 * torch.arange(BLOCK, device=inputs.device)[None],
        "path_lengths": torch.tensor([BLOCK], device=inputs.device),
    }


def kv_commit_case(inputs: Inputs) -> Case:
    """Keys and values of a path of 16 out of 65 nodes into the cache, all layers in one launch."""
    one = inputs.shape
    row = (one.kv_heads, one.head_dim)
    tree = [inputs.randn(one.full_layers, 1, 65, *row) for _ in range(2)]
    cache = [inputs.randn(one.full_layers, 1, 2048, *row) for _ in range(2)]
    plain_cache = [tensor.double() for tensor in cache]
    accepted = {**path(inputs), "starts": torch.tensor([1000], device=inputs.device)}

    def call(op: Callable[..., None], keys: Tensor, values: Tensor, *into: Tensor) -> Any:
        op(keys, values, *accepted.values(), *into)
        return into

    return Case(
        "kv_commit of 16",
        [partial(call, kv_commit.kv_commit, *tree, *cache)] * 4,
        [partial(call, kv_commit_torch.kv_commit, *tree, *cache)] * 4,
        partial(call, kv_commit_torch.kv_commit, *(x.double() for x in tree), *plain_cache),
        2 * size(*tree) * BLOCK // 65,
    )


def conv_commit_case(inputs: Inputs) -> Case:
    """Convolution inputs of a path of 16 out of 65 nodes into the tails, all layers in one."""
    one = inputs.shape
    tree = inputs.randn(one.linear_layers, 1, 65, one.conv_channels)
    tails = inputs.randn(one.linear_layers, 1, 3, one.conv_channels)
    accepted = path(inputs)

    def call(op: Callable[..., None], tree: Tensor, tails: Tensor) -> Tensor:
        op(tree, *accepted.values(), tails)
        return tails

    return Case(
        "conv_commit of 16",
        [partial(call, conv_commit.conv_commit, tree, tails)] * 4,
        [partial(call, conv_commit_torch.conv_commit, tree, tails)] * 4,
        partial(call, conv_commit_torch.conv_commit, tree.double(), tails.double()),
        2 * size(tails),
    )


def topk_case(inputs: Inputs, k: int, dtype: torch.dtype) -> Case:
    """Candidates of a block's rows."""
    rows = [inputs.randn(BLOCK - 1, inputs.shape.vocab, dtype=dtype) * 3 for _ in range(8)]
    return Case(
        f"topk_logprob {k} of {str(dtype)[6:]}",
        [partial(flat, topk_logprob.topk_logprob, logits=one, k=k) for one in rows],
        [partial(flat, topk_logprob_torch.topk_logprob, logits=one, k=k) for one in rows],
        lambda: flat(topk_logprob_torch.topk_logprob, logits=rows[0].double(), k=k),
        size(rows[0]),
    )
