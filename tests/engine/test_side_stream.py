"""Work on a second stream is there when it is asked for, also inside a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from ddtree_engine.side_stream import beside

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("name", DEVICES)
def test_what_was_written_beside_is_there(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device(name)
    x = torch.arange(1 << 20, device=device, dtype=torch.float32)
    out = torch.zeros_like(x)
    with beside(lambda: torch.add(x, 1.0, out=out), device):
        other = x * 2
    assert torch.equal(out + other, 3 * x + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_branch_of_a_graph() -> None:
    device = torch.device("cuda")
    x = torch.ones(1 << 20, device=device)

    def work() -> torch.Tensor:
        out = torch.empty_like(x)
        with beside(lambda: torch.add(x, 1.0, out=out), device):
            other = x * 2
        return out + other

    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    x.fill_(3.0)
    graph.replay()
    assert bool((found == 10.0).all())


@pytest.mark.parametrize("name", DEVICES)
def test_an_error_leaves_nothing_under_way(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device(name)
    x = torch.arange(1 << 20, device=device, dtype=torch.float32)
    out = torch.zeros_like(x)
    with (
        pytest.raises(torch.OutOfMemoryError),
        beside(lambda: torch.add(x, 1.0, out=out), device),
    ):
        raise torch.OutOfMemoryError
    assert torch.equal(out, x + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_error_in_a_capture_is_the_one_that_is_seen() -> None:
    device = torch.device("cuda")
    x, out = torch.ones(1 << 20, device=device), torch.empty(1 << 20, device=device)
    with (
        pytest.raises(torch.OutOfMemoryError),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        beside(lambda: torch.add(x, 1.0, out=out), device),
    ):
        raise torch.OutOfMemoryError
    assert bool((x + 1 == 2.0).all())
