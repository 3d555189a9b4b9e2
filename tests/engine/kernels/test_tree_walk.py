"""Walks on the device against a step at a time, and against the walk of one tree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.tree_walk import naive, vectorized
from ddtree_engine.tree import DraftTree, walk
from tests.engine.trees import random_parents


def trees(batch: int, nodes: int, seed: int) -> dict[str, Tensor]:
    """Random trees of several sizes whose target agrees with most of their nodes' first child."""
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for b in range(batch):
        parents = random_parents(nodes, generator)
        tokens, choices = [7], torch.randint(100, 104, (nodes,), generator=generator)
        for node in range(1, nodes):
            tokens.append(10 + parents[: node + 1].count(parents[node]))
            if torch.rand((), generator=generator) < 0.8:
                choices[parents[node]] = tokens[node]
        size = nodes if b == 0 else int(torch.randint(1, nodes + 1, (), generator=generator))
        # Padding looks like a child of the root that the target would take.
        parents[size:], tokens[size:] = [0] * (nodes - size), [int(choices[0])] * (nodes - size)
        columns.append((choices.tolist(), tokens, parents, size))
    choices, tokens, parents, sizes = (
        torch.tensor(column) for column in zip(*columns, strict=True)
    )
    return {"choices": choices, "tokens": tokens, "parents": parents, "sizes": sizes}


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
@pytest.mark.parametrize(("nodes", "depth"), [(1, 0), (2, 3), (9, 8), (33, 15), (33, 2)])
def test_follows_the_choices(nodes: int, depth: int, form: str, device: torch.device) -> None:
    from ddtree_engine.ops.tree_walk import kernel

    chosen = kernel if form == "kernel" else vectorized
    for seed in range(5):
        tensors = trees(3, nodes, seed)
        expected = naive.tree_walk(**tensors, depth=depth)
        found = chosen.tree_walk(**{n: t.to(device) for n, t in tensors.items()}, depth=depth)
        for name, got, want in zip(expected._fields, found, expected, strict=True):
            assert torch.equal(got.cpu(), want), name


def test_is_the_walk_of_one_tree() -> None:
    tensors = trees(8, 24, seed=9)
    found = naive.tree_walk(**tensors, depth=23)
    lengths = set()
    for b, size in enumerate(tensors["sizes"].tolist()):
        tree = DraftTree(*(tuple(tensors[n][b, :size].tolist()) for n in ("tokens", "parents")))
        path, bonus = walk(tree, tensors["choices"][b].tolist().__getitem__)
        assert found.nodes[b, : len(path)].tolist() == path
        assert not found.nodes[b, len(path) :].any()
        assert (found.lengths[b], found.bonus[b]) == (len(path), bonus)
        lengths.add(len(path))
    assert len(lengths) > 2, "the cases differ"
