"""Each tree op against its plain loop, and the properties that closeness alone would miss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from ddtree_engine.norm import l2_normalize
from ddtree_engine.ops.chunk_gdn import chunk_gdn
from ddtree_engine.ops.drafter_attention import drafter_attention
from ddtree_engine.ops.drafter_attention import naive as drafter_naive
from ddtree_engine.ops.state_commit import naive as state_naive
from ddtree_engine.ops.state_commit.vectorized import state_commit
from ddtree_engine.ops.tree_attention import naive as attention_naive
from ddtree_engine.ops.tree_attention import tree_attention
from ddtree_engine.ops.tree_conv import naive as conv_naive
from ddtree_engine.ops.tree_conv import tree_conv
from ddtree_engine.ops.tree_gdn import naive as gdn_naive
from ddtree_engine.ops.tree_gdn import tree_gdn
from ddtree_engine.tree import DraftTree
from ddtree_engine.tree_batch import TreeBatch
from tests.engine.trees import ancestor_mask, conv_taps, random_parents, seeds, tree_sizes

B, HK, HV, DK, DV = 2, 2, 4, 6, 5
EXACT = {"atol": 1e-9, "rtol": 0.0}


def gdn_inputs(nodes: int, generator: torch.Generator) -> dict[str, Tensor]:
    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    trees = [random_parents(nodes, generator) for _ in range(B)]
    return {
        "q": l2_normalize(randn(B, nodes, HK, DK)) * DK**-0.5,
        "k": l2_normalize(randn(B, nodes, HK, DK)),
        "v": randn(B, nodes, HV, DV),
        # Some steps forget nearly all, where e^G alone would underflow.
        "g": -torch.exp(2 * randn(B, nodes, HV)),
        "beta": torch.sigmoid(randn(B, nodes, HV)),
        "state": randn(B, HV, DK, DV),
        "ancestors": torch.stack([ancestor_mask(parents) for parents in trees]),
    }


@given(tree_sizes, seeds)
@settings(max_examples=30)
def test_tree_gdn_equals_one_state_per_node(nodes: int, seed: int) -> None:
    inputs = gdn_inputs(nodes, torch.Generator().manual_seed(seed))
    torch.testing.assert_close(tree_gdn(**inputs), gdn_naive.tree_gdn(**inputs), **EXACT)


def test_tree_gdn_of_129_nodes_in_float32() -> None:
    inputs = gdn_inputs(129, torch.Generator().manual_seed(0))
    expected = gdn_naive.tree_gdn(**inputs)
    single = {n: x.float() if x.is_floating_point() else x for n, x in inputs.items()}
    found = tree_gdn(**single)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)


@given(tree_sizes, seeds)
@settings(max_examples=15)
def test_a_chain_is_the_causal_form(nodes: int, seed: int) -> None:
    inputs = gdn_inputs(nodes, torch.Generator().manual_seed(seed))
    inputs["ancestors"] = torch.ones(B, nodes, nodes, dtype=torch.bool).tril()
    expected, _ = chunk_gdn(
        *(inputs[name] for name in ("q", "k", "v", "g", "beta")), initial_state=inputs["state"]
    )
    torch.testing.assert_close(tree_gdn(**inputs), expected, **EXACT)


@pytest.mark.parametrize("where", ["q", "k", "v", "g", "beta"])
def test_a_nan_in_one_branch_of_tree_gdn_reaches_no_other(where: str) -> None:
    inputs = gdn_inputs(17, torch.Generator().manual_seed(3))
    expected = gdn_naive.tree_gdn(**inputs)
    broken = 4
    inputs[where] = inputs[where].clone()
    inputs[where][0, broken].view(-1)[0] = torch.nan
    found = tree_gdn(**inputs)
    reached = inputs["ancestors"][0, :, broken]
    assert reached.any()
    assert not reached.all()
    torch.testing.assert_close(found[0, ~reached], expected[0, ~reached], **EXACT)
    torch.testing.assert_close(found[1], expected[1], **EXACT)
    assert found[0, broken].isnan().any()


def attention_inputs(nodes: int, generator: torch.Generator) -> dict[str, object]:
    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    T, heads, groups, d = 9, 4, 2, 6
    lengths = torch.tensor([9, int(torch.randint(0, 9, (), generator=generator))])
    k_prefix, v_prefix = randn(B, T, groups, d), randn(B, T, groups, d)
    # Rows past the end are whatever an earlier request left.
    k_prefix[1, lengths[1] :] = torch.nan
    v_prefix[1, lengths[1] :] = torch.nan
    trees = [random_parents(nodes, generator) for _ in range(B)]
    return {
        "q": randn(B, nodes, heads, d),
        "k_prefix": k_prefix,
        "v_prefix": v_prefix,
        "lengths": lengths,
        "k": randn(B, nodes, groups, d),
        "v": randn(B, nodes, groups, d),
        "ancestors": torch.stack([ancestor_mask(parents) for parents in trees]),
        "scale": d**-0.5,
    }


@given(tree_sizes, seeds)
@settings(max_examples=30)
def test_tree_attention_equals_a_list_of_visible_keys(nodes: int, seed: int) -> None:
    inputs = attention_inputs(nodes, torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        tree_attention(**inputs),  # type: ignore[arg-type]
        attention_naive.tree_attention(**inputs),  # type: ignore[arg-type]
        **EXACT,
    )


@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_a_nan_in_one_branch_of_tree_attention_reaches_no_other(where: str) -> None:
    inputs = attention_inputs(17, torch.Generator().manual_seed(3))
    expected = attention_naive.tree_attention(**inputs)  # type: ignore[arg-type]
    changed = inputs[where]
    ancestors = inputs["ancestors"]
    assert isinstance(changed, Tensor)
    assert isinstance(ancestors, Tensor)
    inputs[where] = changed.clone()
    inputs[where][0, 4] = torch.nan  # type: ignore[index]
    found = tree_attention(**inputs)  # type: ignore[arg-type]
    reached = ancestors[0, :, 4]
    torch.testing.assert_close(found[0, ~reached], expected[0, ~reached], **EXACT)
    torch.testing.assert_close(found[1], expected[1], **EXACT)
    assert found[0, 4].isnan().all()


@given(tree_sizes, seeds)
@settings(max_examples=20)
def test_tree_conv_takes_its_taps_from_ancestors(nodes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    C, K = 3, 4
    x = torch.randn(B, nodes, C, generator=generator, dtype=torch.float64)
    tail = torch.randn(B, K - 1, C, generator=generator, dtype=torch.float64)
    weight = torch.randn(C, K, generator=generator, dtype=torch.float64)
    trees = [random_parents(nodes, generator) for _ in range(B)]
    taps = torch.stack([conv_taps(parents, K) for parents in trees])
    torch.testing.assert_close(
        tree_conv(x, tail, taps, weight), conv_naive.tree_conv(x, tail, taps, weight), **EXACT
    )
    # What reaches node i is its own path and nothing else.
    i = nodes - 1
    outside = ~ancestor_mask(trees[0])[i]
    x[0, outside] = torch.nan
    assert tree_conv(x, tail, taps, weight)[0, i].isfinite().all()


@given(seeds)
@settings(max_examples=20)
def test_state_commit_replays_the_recurrence(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    L, D = 3, 5

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    k = l2_normalize(randn(L, B, D, HK, DK))
    v, g = randn(L, B, D, HV, DV), -torch.exp(randn(L, B, D, HV))
    beta, state = torch.sigmoid(randn(L, B, D, HV)), randn(L, B, HV, DK, DV)
    lengths = torch.randint(1, D + 1, (B,), generator=generator)
    for b in range(B):
        # What lies past the end of a path is some other node's.
        k[:, b, lengths[b] :] = torch.nan
        v[:, b, lengths[b] :] = torch.nan
        g[:, b, lengths[b] :] = torch.nan
        beta[:, b, lengths[b] :] = torch.nan
    expected = state.clone()
    state_naive.state_commit(k, v, g, beta, lengths, expected)
    state_commit(k, v, g, beta, lengths, state)
    torch.testing.assert_close(state, expected, **EXACT)


def test_state_commit_in_one_go_equals_token_by_token_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    L, D = 2, 16
    k = l2_normalize(torch.randn(L, B, D, HK, DK, generator=generator))
    v = torch.randn(L, B, D, HV, DV, generator=generator)
    g = -torch.rand(L, B, D, HV, generator=generator)
    beta = torch.rand(L, B, D, HV, generator=generator)
    start = torch.randn(L, B, HV, DK, DV, generator=generator)
    whole, steps = start.clone(), start.clone()
    state_commit(k, v, g, beta, torch.full((B,), D), whole)
    for t in range(D):
        step = slice(t, t + 1)
        state_commit(
            k[:, :, step], v[:, :, step], g[:, :, step], beta[:, :, step], torch.ones(B), steps
        )
    assert torch.equal(whole, steps)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 4, 30])
def test_drafter_attention_follows_its_mask_rules(causal: bool, window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    T, M, heads, groups, d = 12, 6, 4, 2, 5
    lengths = torch.tensor([12, 7])
    k_context, v_context = randn(B, T, groups, d), randn(B, T, groups, d)
    k_context[1, 7:] = torch.nan
    v_context[1, 7:] = torch.nan
    q, k, v = randn(B, M, heads, d), randn(B, M, groups, d), randn(B, M, groups, d)
    arguments = (q, k_context, v_context, lengths, k, v)
    torch.testing.assert_close(
        drafter_attention(*arguments, causal=causal, window=window, scale=0.4),
        drafter_naive.drafter_attention(*arguments, causal=causal, window=window, scale=0.4),
        **EXACT,
    )


@given(tree_sizes, seeds)
@settings(max_examples=30)
def test_tree_batch_lays_trees_out(nodes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    small = max(1, nodes // 2)
    parents = [random_parents(nodes, generator), random_parents(small, generator)]
    trees = [DraftTree(tuple(range(len(p))), tuple(p)) for p in parents]
    batch = TreeBatch.from_trees(trees, conv_kernel=4, device=torch.device("cpu"))
    for b, (tree, p) in enumerate(zip(trees, parents, strict=True)):
        n = len(p)
        assert batch.tokens[b, :n].tolist() == list(tree.tokens)
        assert batch.depths[b, :n].tolist() == list(tree.depths)
        assert torch.equal(batch.ancestors[b, :n, :n], ancestor_mask(p))
        assert torch.equal(batch.taps[b, :n], conv_taps(p, 4))
        assert not batch.ancestors[b, :n, n:].any(), "a real node sees padding"
    assert torch.equal(batch.recurrent_ancestors, batch.ancestors)


def test_a_leaking_batch_is_a_chain_to_the_recurrent_layers_only() -> None:
    tree = DraftTree((0, 1, 2, 3), (-1, 0, 0, 1))
    batch = TreeBatch.from_trees([tree], conv_kernel=3, device=torch.device("cpu"), leak=True)
    chain = [-1, 0, 1, 2]
    assert torch.equal(batch.recurrent_ancestors[0], ancestor_mask(chain))
    assert torch.equal(batch.taps[0], conv_taps(chain, 3))
    assert torch.equal(batch.ancestors[0], ancestor_mask([-1, 0, 0, 1]))
