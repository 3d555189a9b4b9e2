"""Replay of accepted paths from the inputs of the convolution, and what must not change a bit."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.gdn_commit import naive, vectorized

KEY_HEADS, DK, HV, DV, K = 2, 12, 4, 20, 4
L, B, N = 2, 3, 9
SIZES = {"key_heads": KEY_HEADS, "eps": 1e-6}
PATHS = [[0, 2, 5, 6, 8], [0, 0, 0, 0, 0], [0, 1, 3, 0, 0]]
LENGTHS = [5, 0, 3]


def of(form: str) -> ModuleType:
    from ddtree_engine.ops.gdn_commit import kernel

    return kernel if form == "kernel" else vectorized


def tree() -> dict[str, Tensor]:
    """All of a tree but the path through it, and the states before it, which are a cache's rows."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    channels = 2 * KEY_HEADS * DK + HV * DV
    return {
        "inputs": randn(L, B, N, channels),
        "tails": randn(L, B, K - 1, channels),
        "weight": randn(L, channels, K),
        "g": -randn(L, B, N, HV).abs(),
        "beta": randn(L, B, N, HV).sigmoid(),
        "state": randn(L, B + 2, HV, DK, DV)[:, 1 : B + 1],
    }


def commit(
    form: ModuleType, tensors: dict[str, Tensor], nodes: list[list[int]], lengths: list[int]
) -> Tensor:
    """The states after it; those of `tensors` stay."""
    device = tensors["inputs"].device
    state = tensors["state"].clone()
    form.gdn_commit(
        **{name: tensor for name, tensor in tensors.items() if name != "state"},
        nodes=torch.tensor(nodes, device=device),
        path_lengths=torch.tensor(lengths, device=device),
        state=state,
        **SIZES,
    )
    return state


def moved(tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


@pytest.mark.parametrize("form", ["vectorized", "kernel"])
def test_replays_the_recurrence(form: str, device: torch.device) -> None:
    plain = tree()
    want = commit(naive, plain, PATHS, LENGTHS)
    found = commit(of(form), moved(plain, device), PATHS, LENGTHS)
    torch.testing.assert_close(found.cpu(), want, atol=1e-5, rtol=1e-5)
    assert torch.equal(found[:, 1].cpu(), plain["state"][:, 1])
    # What lies off the path does not matter, broken or not.
    for name in ("inputs", "g", "beta"):
        plain[name][:, 0, [1, 3, 4, 7]] = torch.nan
    again = commit(of(form), moved(plain, device), PATHS, LENGTHS)
    assert torch.equal(again, found)


def test_one_token_at_a_time_gives_the_same_bits(device: torch.device) -> None:
    """A chain committed node by node, as `ar` does, its inputs becoming the tail."""
    kernel, chain = of("kernel"), moved(tree(), device)
    whole = commit(kernel, chain, [[0, 1, 2, 3, 4]] * B, [5] * B)
    seen = torch.cat([chain["tails"], chain["inputs"]], dim=2)
    for t in range(5):
        step = {name: chain[name][:, :, t : t + 1] for name in ("inputs", "g", "beta")}
        step |= {"tails": seen[:, :, t : t + K - 1], "weight": chain["weight"]}
        chain["state"] = commit(kernel, {**step, "state": chain["state"]}, [[0]] * B, [1] * B)
    assert torch.equal(whole, chain["state"])


def test_a_neighbour_changes_no_bit(device: torch.device) -> None:
    kernel, together = of("kernel"), moved(tree(), device)
    alone = {name: t if name == "weight" else t[:, :1] for name, t in together.items()}
    expected = commit(kernel, alone, PATHS[:1], LENGTHS[:1])
    for lengths in ([5, 0, 3], [5, 4, 1]):
        assert torch.equal(commit(kernel, together, PATHS, lengths)[:, :1], expected)
