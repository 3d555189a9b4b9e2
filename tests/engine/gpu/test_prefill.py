"""Prompts in half precision on the GPU, by the library's kernels and without them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.chunk_gdn import chunk_gdn, library, vectorized
from tests.engine.test_chunk_gdn import inputs
from tests.engine.test_prefill import Engine, some_tokens

GPU = torch.device("cuda")
PIECES = [65, 1, 128, 63]


@pytest.fixture(autouse=True)
def looked_for_anew() -> Iterator[None]:
    library.load.cache_clear()
    yield
    library.load.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library, which takes its first tilings: to measure them all takes half a minute."""
    if find_spec("fla") is None:
        pytest.skip("fla-core is not installed")
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs
    monkeypatch.setattr(
        Autotuner, "prune_configs", lambda self, arguments: prune(self, arguments)[:1]
    )


def error(found: Tensor, expected: Tensor) -> float:
    """Relative, in the Euclidean norm."""
    difference = found.double().cpu() - expected.cpu()
    return float(difference.norm() / expected.norm())


@pytest.mark.usefixtures("installed")
def test_the_kernels_are_right_to_rounding() -> None:
    for length in (1, 64, 70, 512):
        exact = inputs(1, length, 2, 6, 128, 128, decay=0.1)
        half = [x.to(GPU, torch.bfloat16) for x in exact[:3]]
        single = [x.to(GPU, torch.float32) for x in exact[3:]]
        out, state = chunk_gdn(*half, *single)
        assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32), "not by the library"
        same = [x.double().cpu() for x in (*half, *single)]
        expected, expected_state = vectorized.chunk_gdn(*same)
        assert error(out, expected) < 1e-2, length
        assert error(state, expected_state) < 1e-2, length


def errors(found: Engine, expected: Engine) -> dict[str, float]:
    """Of each tensor of the caches."""
    others = expected.tensors()
    return {name: error(tensor, others[name]) for name, tensor in found.tensors().items()}


def engines() -> list[Engine]:
    """On the GPU, to be prefilled and for rounds; and what both should come to."""
    half = {"dtype": torch.bfloat16, "device": GPU}
    common = {"length": 300, "rounded": torch.bfloat16}
    return [
        Engine("wide", **half, **common),  # type: ignore[arg-type]
        Engine("wide", **half, **common),  # type: ignore[arg-type]
        Engine("wide", dtype=torch.float64, **common),  # type: ignore[arg-type]
    ]


def assert_no_worse_than_rounds() -> None:
    """Pieces of a prompt are as near to exact numbers as verify and commit passes."""
    tokens = some_tokens(sum(PIECES))
    by_pieces, by_rounds, exact = engines()
    by_pieces.prefill(tokens.to(GPU), PIECES)
    by_rounds.verify_and_commit(tokens.to(GPU), PIECES)
    exact.verify_and_commit(tokens, PIECES)
    rounding = errors(by_rounds, exact)
    for name, one in errors(by_pieces, exact).items():
        assert one < 2 * rounding[name] + 2**-9, (name, one, rounding[name])


@pytest.mark.usefixtures("installed")
@torch.inference_mode()
def test_a_prompt_by_the_library() -> None:
    assert_no_worse_than_rounds()
    assert library.load() is not None


@torch.inference_mode()
def test_a_prompt_without_the_library(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str) -> NoReturn:
        raise ImportError(f"No module named {name}")

    monkeypatch.setattr(library, "import_module", fail)
    assert_no_worse_than_rounds()
    assert caplog.text.count("prompts are read more slowly") == 1
