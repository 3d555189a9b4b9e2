"""The k likeliest tokens: both faster forms against a full sort, with ties."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ddtree_engine.ops.topk_logprob import naive, vectorized

Form = Callable[[Tensor, int], tuple[Tensor, Tensor]]


@pytest.fixture(params=["vectorized", "kernel"])
def topk_logprob(request: pytest.FixtureRequest, device: torch.device) -> Form:
    if request.param == "vectorized":
        return vectorized.topk_logprob
    from ddtree_engine.ops.topk_logprob import kernel

    return lambda logits, k: tuple(t.cpu() for t in kernel.topk_logprob(logits.to(device), k))


@pytest.mark.parametrize(("vocab", "k"), [(1, 1), (11, 11), (4099, 8)])
def test_equals_a_full_sort(vocab: int, k: int, topk_logprob: Form) -> None:
    logits = 5 * torch.randn(3, vocab, generator=torch.Generator().manual_seed(0))
    log_probs, ids = topk_logprob(logits, k)
    expected, expected_ids = naive.topk_logprob(logits, k)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(log_probs, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("k", [1, 3, 6, 9])
def test_equal_logits_go_to_the_smaller_id(k: int, topk_logprob: Form) -> None:
    logits = torch.full((2, 4200), -4.0)
    logits[0, [7, 4100, 19, 2050, 2047]] = 2.5
    logits[0, 4150] = 3.0
    logits[1, [5, 4]] = 0.0
    logits[1, 3] = -0.0
    log_probs, ids = topk_logprob(logits, k)
    expected, expected_ids = naive.topk_logprob(logits, k)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(log_probs, expected, atol=2e-5, rtol=0)


def test_tokens_that_cannot_come(topk_logprob: Form) -> None:
    logits = torch.full((1, 2100), -torch.inf)
    logits[0, 2099], logits[0, 3] = 1.0, -300.0
    log_probs, ids = topk_logprob(logits, 3)
    assert ids.tolist() == [[2099, 3, 0]]
    assert log_probs.tolist() == [[0.0, -301.0, -torch.inf]]


def test_a_likeliest_token_far_below_zero(topk_logprob: Form) -> None:
    """A piece of the vocabulary without any token that can come must not be taken for the best."""
    logits = torch.full((1, 2100), -torch.inf)
    logits[0, 2099] = -200.0
    log_probs, ids = topk_logprob(logits, 1)
    assert ids.tolist() == [[2099]]
    assert log_probs.tolist() == [[0.0]]


def test_a_nan_spoils_its_row_and_no_other(topk_logprob: Form) -> None:
    logits = torch.randn(2, 2100, generator=torch.Generator().manual_seed(0))
    expected, _ = naive.topk_logprob(logits, 4)
    logits[0, 2090] = torch.nan
    log_probs, ids = topk_logprob(logits, 4)
    assert log_probs[0].isnan().all()
    assert ((ids >= 0) & (ids < 2100)).all()
    torch.testing.assert_close(log_probs[1], expected[1], atol=2e-5, rtol=0)
