"""The bits of an ancestor mask against its plain loop, and that the recurrence reads them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_engine.ops import ancestor_bits as op
from ddtree_engine.ops.ancestor_bits import naive
from tests.engine.trees import ancestor_mask, random_parents, seeds

# Around the ends of words, where a bit is a sign or another word's.
SIZES = st.sampled_from([1, 2, 31, 32, 33, 34, 64, 65, 66, 96, 97, 98, 128, 129])


@given(nodes=SIZES, batch=st.integers(1, 2), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_equals_the_plain_loop(nodes: int, batch: int, seed: int, device: torch.device) -> None:
    from ddtree_engine.ops.ancestor_bits import kernel

    generator = torch.Generator().manual_seed(seed)
    trees = [ancestor_mask(random_parents(nodes, generator)) for _ in range(batch)]
    ancestors = torch.stack(trees)
    found = kernel.ancestor_bits(ancestors.to(device)).cpu()
    assert torch.equal(found, naive.ancestor_bits(ancestors))


def test_a_chain_that_all_requests_share(device: torch.device) -> None:
    from ddtree_engine.ops.ancestor_bits import kernel

    chain = torch.ones(129, 129, dtype=torch.bool).tril().expand(2, 129, 129)
    found = kernel.ancestor_bits(chain.to(device)).cpu()
    assert torch.equal(found, naive.ancestor_bits(chain))
    assert found[0, 128].tolist() == [-1] * 4
    assert found[0, 0].tolist() == [0] * 4


@pytest.mark.parametrize("nodes", [129, 130])
def test_only_what_a_kernel_reads_is_made(nodes: int, device: torch.device) -> None:
    mask = torch.ones(1, nodes, nodes, dtype=torch.bool, device=device).tril()
    made = op.ancestor_bits(mask) is not None
    assert made == (device.type == "cuda" and nodes <= op.MAX_NODES)
