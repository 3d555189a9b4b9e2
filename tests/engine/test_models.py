"""Properties of whole models: branches are isolated, siblings interchangeable, blocks right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from ddtree_engine.cache import TargetCache
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.ops.drafter_attention import naive
from ddtree_engine.target import TargetModel
from ddtree_engine.training.blocks import BlockAttention, forward_blocks
from ddtree_engine.tree import DraftTree, chain
from ddtree_engine.tree_batch import TreeBatch
from tests.engine.conftest import VOCAB, drafter_config, randomize
from tests.engine.trees import random_parents, seeds

CPU = torch.device("cpu")
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def filled_cache(target: TargetModel, length: int) -> TargetCache:
    generator = torch.Generator().manual_seed(5)
    cache = TargetCache(target.config, rows=1, max_length=32, dtype=torch.float32, device=CPU)
    for tensor in (cache.keys, cache.values, cache.tails, cache.states):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    cache.lengths[0] = length
    return cache


def node_logits(target: TargetModel, tree: DraftTree, cache: TargetCache) -> Tensor:
    batch = TreeBatch.from_trees([tree], conv_kernel=target.conv_kernel, device=CPU)
    return target.logits(target.verify(batch, cache, slice(0, 1)).hidden)[0]


def random_tree(nodes: int, seed: int) -> DraftTree:
    """Siblings have distinct tokens: each node's is its index, as far as the vocabulary goes."""
    generator = torch.Generator().manual_seed(seed)
    return DraftTree(tuple(range(nodes)), tuple(random_parents(nodes, generator)))


@given(seeds)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@torch.no_grad()
def test_each_node_sees_what_a_chain_of_its_path_sees(target: TargetModel, seed: int) -> None:
    tree, cache = random_tree(VOCAB, seed), filled_cache(target, 20)
    logits = node_logits(target, tree, cache)
    for node in range(VOCAB):
        path, at = [], node
        while at >= 0:
            path.append(tree.tokens[at])
            at = tree.parents[at]
        path.reverse()
        alone = node_logits(target, chain(path[0], path[1:]), cache)[-1]
        torch.testing.assert_close(logits[node], alone, **CLOSE)


@torch.no_grad()
def test_permuting_siblings_changes_nothing(target: TargetModel) -> None:
    cache = filled_cache(target, 20)
    tree = DraftTree((0, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 2, 2))
    turned = DraftTree((0, 2, 1, 5, 4, 3), (-1, 0, 0, 1, 1, 2))
    order = [0, 2, 1, 5, 4, 3]
    torch.testing.assert_close(
        node_logits(target, turned, cache), node_logits(target, tree, cache)[order], **CLOSE
    )


@torch.no_grad()
def test_a_nan_in_one_branch_reaches_no_other(target: TargetModel) -> None:
    cache = filled_cache(target, 20)
    tree = DraftTree((0, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 2, 2))
    expected = node_logits(target, tree, cache)
    target.embed_tokens.weight[2] = torch.nan
    found = node_logits(target, tree, cache)
    torch.testing.assert_close(found[[0, 1, 3]], expected[[0, 1, 3]], **CLOSE)
    assert found[[2, 4, 5]].isnan().all()


@torch.no_grad()
def test_verify_only_reads_the_cache(target: TargetModel) -> None:
    cache = filled_cache(target, 20)
    before = [x.clone() for x in (cache.keys, cache.values, cache.tails, cache.states)]
    node_logits(target, random_tree(VOCAB, 1), cache)
    after = (cache.keys, cache.values, cache.tails, cache.states)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def block_by_block(
    drafter: DrafterModel, features: Tensor, anchors: Tensor, blocks: Tensor
) -> Tensor:
    """One block at a time, through the path that decoding takes."""
    B, A = anchors.shape
    T = features.shape[1]
    positions = torch.arange(T).expand(B, T)
    keys, values = drafter.context(features, positions)
    rows = []
    for b in range(B):
        for a in range(A):
            n = int(anchors[b, a])
            rows.append(
                drafter.draft(
                    blocks[b, a][None],
                    keys[:, b : b + 1, :n],
                    values[:, b : b + 1, :n],
                    torch.tensor([n]),
                )[0]
            )
    return torch.stack(rows).view(B, A, *rows[0].shape)


@pytest.mark.parametrize("causal_sliding", [True, False])
@torch.no_grad()
def test_training_drafts_what_decoding_drafts(causal_sliding: bool) -> None:
    drafter = DrafterModel(drafter_config(causal_sliding=causal_sliding))
    randomize(drafter, 4)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 20, 48, generator=generator)
    anchors = torch.tensor([[1, 5, 19], [3, 12, 13]])
    blocks = torch.randn(2, 3, 6, 24, generator=generator)
    torch.testing.assert_close(
        forward_blocks(drafter, features, anchors, blocks, BlockAttention()),
        block_by_block(drafter, features, anchors, blocks),
        **CLOSE,
    )


@torch.no_grad()
def test_the_drafter_as_a_loop_over_visible_pairs(drafter: DrafterModel) -> None:
    """Each row alone, attending to the list of positions that the mask rules let it see."""
    config = drafter.config
    generator = torch.Generator().manual_seed(0)
    n, M = 13, config.block_size
    features = torch.randn(1, n, 48, generator=generator)
    block = torch.randn(1, M, 24, generator=generator)
    keys, values = drafter.context(features, torch.arange(n)[None])
    found = drafter.draft(block, keys, values, torch.tensor([n]))[0]

    rope = drafter.rope(torch.arange(n, n + M)[None])
    x = block
    for index, kind in enumerate(config.layer_types):
        layer = drafter.layers[index]
        sliding = kind == "sliding_attention"
        normed = layer.input_layernorm(x)
        q, k, v = (part[0] for part in layer.self_attn.project(normed, rope))
        mixed = torch.zeros(1, M, config.num_heads, config.head_dim)
        for i in range(M):
            window = config.sliding_window if sliding else None
            context = [p for p in range(n) if naive.sees_context(p, n, i, window)]
            rows = [j for j in range(M) if naive.sees_block(j, i, causal=sliding)]
            for h in range(config.num_heads):
                g = h // (config.num_heads // config.num_kv_heads)
                seen_k = torch.cat([keys[index, 0, context, g], k[rows, g]])
                seen_v = torch.cat([values[index, 0, context, g], v[rows, g]])
                weights = torch.softmax(seen_k @ q[i, h] * config.head_dim**-0.5, dim=0)
                mixed[0, i, h] = weights @ seen_v
        x = x + layer.self_attn.o_proj(mixed.flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    torch.testing.assert_close(found, drafter.norm(x)[0, 1:], **CLOSE)


def test_slot_0_of_a_block_is_the_anchor_and_not_a_mask(drafter: DrafterModel) -> None:
    block = drafter.block_tokens(torch.tensor([3, 7]))
    mask = drafter.config.mask_token_id
    assert block.tolist() == [[3, mask, mask, mask, mask, mask], [7, mask, mask, mask, mask, mask]]


@torch.no_grad()
def test_the_anchor_reaches_every_drafted_row(target: TargetModel, drafter: DrafterModel) -> None:
    keys, values = drafter.context(torch.randn(2, 4, 48), torch.arange(4).expand(2, 4))
    keys[:, 1], values[:, 1] = keys[:, 0], values[:, 0]
    block = target.embed(drafter.block_tokens(torch.tensor([3, 7])))
    one, other = drafter.draft(block, keys, values, torch.tensor([4, 4]))
    assert ((one - other).abs().amax(-1) > 1e-3).all()


@pytest.mark.parametrize("layers", [(2, 0), (0, 2), (1, 1, 0)])
@torch.no_grad()
def test_features_come_in_the_order_that_the_drafter_names(
    target: TargetModel, layers: tuple[int, ...]
) -> None:
    tokens = torch.arange(5)[None]
    alone = [target.forward_sequence(tokens, (layer,))[1] for layer in layers]
    assert all(one is not None for one in alone)
    expected = torch.cat([one for one in alone if one is not None], dim=-1)
    whole = target.forward_sequence(tokens, layers)[1]
    assert whole is not None
    assert torch.equal(whole, expected)
    batch = TreeBatch.chain(tokens, conv_kernel=target.conv_kernel)
    cache = TargetCache(target.config, rows=1, max_length=8, dtype=torch.float32, device=CPU)
    verified = target.verify(batch, cache, slice(0, 1), layers).features
    assert verified is not None
    torch.testing.assert_close(verified, expected, **CLOSE)
