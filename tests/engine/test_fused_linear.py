"""Fused projections are the same projections, and are held once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddtree_engine.drafter import DrafterModel
from ddtree_engine.fused_linear import fuse, project, project_beside
from ddtree_engine.target import TargetModel
from tests.engine.conftest import drafter_config, randomize, target_config


def test_fusing_changes_neither_names_nor_values() -> None:
    for model in (TargetModel(target_config()), DrafterModel(drafter_config())):
        randomize(model, 1)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.fuse()
        after = model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_is_fused_is_held_once() -> None:
    model = TargetModel(target_config())
    randomize(model, 1)
    size = sum(parameter.nbytes for parameter in model.parameters())
    model.fuse()
    storages = {one.untyped_storage().data_ptr(): one for one in model.parameters()}
    assert sum(one.untyped_storage().nbytes() for one in storages.values()) == size
    mlp = model.decoder_layers()[0].mlp
    assert mlp.up_proj.weight.data_ptr() > mlp.gate_proj.weight.data_ptr()


def test_fused_and_separate_projections_agree() -> None:
    tokens = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    model = TargetModel(target_config())
    randomize(model, 1)
    with torch.inference_mode():
        separate, _ = model.forward_sequence(tokens)
        model.fuse()
        fused, _ = model.forward_sequence(tokens)
    torch.testing.assert_close(fused, separate, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("rows", [1, 17, 65, 129])
def test_what_comes_beside_other_work_is_the_same(name: str, rows: int) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(rows)
    linears = [nn.Linear(128, size, bias=False) for size in (200, 24, 256)]
    for one in linears:
        one.to(name, torch.bfloat16)
    fused = fuse(*linears)
    x = torch.randn(1, rows, 128).to(name, torch.bfloat16)
    with torch.inference_mode():
        want = project(x, fused, *linears)
        # With two programs beside it, there are multiprocessors left on any GPU.
        got, meanwhile = project_beside(x, fused, *linears, busy=2)
        with meanwhile:
            pass
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
