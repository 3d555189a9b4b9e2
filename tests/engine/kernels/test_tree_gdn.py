"""The gated delta rule kernel against one state per node, and what closeness would miss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddtree_engine.norm import l2_normalize
from ddtree_engine.ops.ancestor_bits.naive import ancestor_bits
from ddtree_engine.ops.tree_gdn import naive
from tests.engine.trees import ancestor_mask, random_parents

CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def inputs(
    nodes: int, *, key_dim: int = 24, value_dim: int = 20, batch: int = 2, seed: int = 0
) -> dict[str, Tensor]:
    """Random tensors of two requests, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    key_heads, value_heads = 1, 2
    trees = [random_parents(nodes, generator) for _ in range(batch)]
    return {
        "q": l2_normalize(randn(batch, nodes, key_heads, key_dim)) * key_dim**-0.5,
        "k": l2_normalize(randn(batch, nodes, key_heads, key_dim)),
        "v": randn(batch, nodes, value_heads, value_dim),
        # Some steps forget nearly all, where e^G alone would underflow.
        "g": -torch.exp(2 * randn(batch, nodes, value_heads)),
        "beta": torch.sigmoid(randn(batch, nodes, value_heads)),
        "state": randn(batch, value_heads, key_dim, value_dim),
        "ancestors": torch.stack([ancestor_mask(parents) for parents in trees]),
    }


def run(tensors: dict[str, Tensor], device: torch.device, bits: Tensor | None = None) -> Tensor:
    """The kernel's output on float32 copies, back on the CPU in float64."""
    from ddtree_engine.ops.tree_gdn import kernel

    single = {
        name: (x.float() if x.is_floating_point() else x).to(device) for name, x in tensors.items()
    }
    before = single["state"].clone()
    out = kernel.tree_gdn(**single, bits=None if bits is None else bits.to(device))
    assert torch.equal(single["state"], before), "verify only reads the committed state"
    return out.cpu().double()


# One node, tiles that are full with the root outside of them, and one node more.
@pytest.mark.parametrize("nodes", [1, 2, 17, 18, 33, 65, 66, 129])
def test_equals_one_state_per_node(nodes: int, device: torch.device) -> None:
    tensors = inputs(nodes, batch=2 if nodes < 40 else 1, seed=nodes)
    torch.testing.assert_close(run(tensors, device), naive.tree_gdn(**tensors), **CLOSE)


@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 16), (64, 72)])
def test_head_sizes(key_dim: int, value_dim: int, device: torch.device) -> None:
    tensors = inputs(9, key_dim=key_dim, value_dim=value_dim)
    torch.testing.assert_close(run(tensors, device), naive.tree_gdn(**tensors), **CLOSE)


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_strengths_at_their_ends(strength: float, device: torch.device) -> None:
    tensors = inputs(40, batch=1)
    tensors["beta"] = torch.full_like(tensors["beta"], strength)
    torch.testing.assert_close(run(tensors, device), naive.tree_gdn(**tensors), **CLOSE)


def test_reads_the_bits_that_a_pass_has_made(device: torch.device) -> None:
    tensors = inputs(20)
    expected = run(tensors, device)
    bits = ancestor_bits(tensors["ancestors"])
    tensors["ancestors"] = torch.zeros_like(tensors["ancestors"])
    assert torch.equal(run(tensors, device, bits), expected)


def test_a_long_chain_of_equal_keys(device: torch.device) -> None:
    """Powers of A would reach 10^36 here; the solution itself stays small."""
    tensors = inputs(129, batch=1)
    tensors["k"] = tensors["k"][:, :1].expand_as(tensors["k"])
    tensors["g"] = torch.full_like(tensors["g"], -1e-3)
    tensors["beta"] = torch.full_like(tensors["beta"], 0.99)
    tensors["ancestors"] = torch.ones(1, 129, 129, dtype=torch.bool).tril()
    torch.testing.assert_close(run(tensors, device), naive.tree_gdn(**tensors), **CLOSE)


@pytest.mark.parametrize("alike", [False, True])
def test_a_tile_of_128_rows(alike: bool, device: torch.device) -> None:
    """The tile of large trees in half precision, with float32 to see that it is exact."""
    from ddtree_engine.ops.tree_gdn import kernel
    from ddtree_engine.ops.tree_gdn.tiling import Tiling

    if device.type == "cuda":
        pytest.skip("in float32 its matrices fit no GPU: under the interpreter only")
    tensors = inputs(129, batch=1, seed=4)
    if alike:
        tensors["k"] = tensors["k"][:, :1].expand_as(tensors["k"])
        tensors["g"] = torch.full_like(tensors["g"], -1e-3)
        tensors["beta"] = torch.full_like(tensors["beta"], 0.99)
        tensors["ancestors"] = torch.ones(1, 129, 129, dtype=torch.bool).tril()
    single = {n: x.float() if x.is_floating_point() else x for n, x in tensors.items()}
    found = kernel.tree_gdn(**single, precision="ieee", tiling=Tiling(128, 1, 16, 8))
    torch.testing.assert_close(found.double(), naive.tree_gdn(**tensors), **CLOSE)


@pytest.mark.parametrize("nodes", [65, 129])
def test_a_long_chain_of_equal_keys_in_half_precision(nodes: int, device: torch.device) -> None:
    from ddtree_engine.ops.tree_gdn import kernel

    if device.type == "cpu":
        pytest.skip("tilings for bfloat16, which the interpreter lacks: on a GPU only")
    tensors = inputs(nodes, key_dim=128, value_dim=128, batch=1)
    tensors["k"] = tensors["k"][:, :1].expand_as(tensors["k"])
    tensors["g"] = torch.full_like(tensors["g"], -1e-3)
    tensors["beta"] = torch.full_like(tensors["beta"], 0.99)
    tensors["ancestors"] = torch.ones(1, nodes, nodes, dtype=torch.bool).tril()
    tensors = {name: x.bfloat16() if name in ("q", "k", "v") else x for name, x in tensors.items()}
    expected = naive.tree_gdn(
        **{name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}
    )
    tensors = {n: x.float() if x.dtype == torch.float64 else x for n, x in tensors.items()}
    found = kernel.tree_gdn(**{name: x.to(device) for name, x in tensors.items()}).cpu()
    assert (found.double() - expected).norm() / expected.norm() < 1e-2


@pytest.mark.parametrize(
    ("nodes", "where", "value"),
    [
        *((17, where, x) for where in ("q", "k", "v", "g", "beta") for x in (torch.nan, torch.inf)),
        *(
            (65, "beta", torch.nan),
            (65, "k", torch.inf),
            (129, "v", torch.nan),
            (129, "k", -torch.inf),
        ),
    ],
)
def test_a_broken_node_reaches_its_descendants_only(
    nodes: int, where: str, value: float, device: torch.device
) -> None:
    tensors = inputs(nodes, batch=2 if nodes < 40 else 1, seed=3)
    expected = naive.tree_gdn(**tensors)
    mask = tensors["ancestors"][0]
    # With descendants, in the later tile too where there are two.
    broken = next(
        j for j in range(1, nodes) if mask[:, j].sum() > 2 and mask[-nodes // 3 :, j].any()
    )
    tensors[where] = tensors[where].clone()
    tensors[where][0, broken].view(-1)[0] = value
    found = run(tensors, device)
    reached = mask[:, broken]
    torch.testing.assert_close(found[0, ~reached], expected[0, ~reached], **CLOSE)
    torch.testing.assert_close(found[1:], expected[1:], **CLOSE)
    assert not found[0, broken].isfinite().all()
    if where != "q":  # a query is its node's alone
        assert not found[0, reached].isfinite().flatten(1).all(1).any()


def test_the_order_of_siblings_changes_nothing(device: torch.device) -> None:
    tensors = inputs(9, batch=1)
    # A root with eight children, in any order.
    mask = torch.eye(9, dtype=torch.bool)
    mask[:, 0] = True
    tensors["ancestors"] = mask[None]
    order = torch.tensor([0, 5, 3, 8, 1, 2, 7, 4, 6])
    turned = {
        name: x if name in ("state", "ancestors") else x[:, order] for name, x in tensors.items()
    }
    assert torch.equal(run(turned, device), run(tensors, device)[:, order])


# A tile of each size; the last with heads of the size that models have.
@pytest.mark.parametrize(
    ("nodes", "dims"),
    [
        *((12, (24, 20)), (25, (24, 20)), (65, (24, 20)), (66, (24, 20))),
        *((80, (128, 128)), (129, (128, 128))),
    ],
)
def test_half_precision_comes_out_as_it_went_in(
    nodes: int, dims: tuple[int, int], device: torch.device, half: torch.dtype
) -> None:
    from ddtree_engine.ops.tree_gdn import kernel

    if nodes > 25 and device.type == "cpu":
        pytest.skip("tilings for bfloat16, which the interpreter lacks: on a GPU only")
    tensors = inputs(nodes, key_dim=dims[0], value_dim=dims[1], batch=1)
    for name in ("q", "k", "v"):
        tensors[name] = tensors[name].to(half)
    # One request's values are large: a column's size is taken out of half precision.
    tensors["v"] *= 1e5 if half == torch.bfloat16 else 1.0
    expected = naive.tree_gdn(
        **{name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}
    )
    for name in ("g", "beta", "state"):
        tensors[name] = tensors[name].float()
    found = kernel.tree_gdn(**{name: x.to(device) for name, x in tensors.items()})
    assert found.dtype == half
    error = (found.cpu().double() - expected).norm() / expected.norm()
    assert error < 4e-3


@pytest.mark.parametrize("where", ["q", "k", "v", "g", "beta"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("nodes", [17, 65, 80, 129])
def test_a_broken_node_in_half_precision(
    nodes: int, value: float, where: str, device: torch.device, half: torch.dtype
) -> None:
    from ddtree_engine.ops.tree_gdn import kernel

    if nodes > 17 and device.type == "cpu":
        pytest.skip("tilings for bfloat16, which the interpreter lacks: on a GPU only")
    tensors = inputs(nodes, batch=1, seed=3)
    mask = tensors["ancestors"][0]
    broken = next(j for j in range(1, nodes) if mask[:, j].sum() > 2)
    for name in ("q", "k", "v"):
        tensors[name] = tensors[name].to(half)
    for name in ("g", "beta", "state"):
        tensors[name] = tensors[name].float()
    tensors = {name: x.to(device) for name, x in tensors.items()}
    expected = kernel.tree_gdn(**tensors).cpu()
    tensors[where] = tensors[where].clone()
    tensors[where][0, broken].view(-1)[0] = value
    found = kernel.tree_gdn(**tensors).cpu()
    reached = mask[:, broken]
    torch.testing.assert_close(found[0, ~reached], expected[0, ~reached], atol=1e-4, rtol=8e-3)
    assert not found[0, broken].isfinite().all()
