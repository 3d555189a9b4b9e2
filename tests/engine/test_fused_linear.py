"""Fused projections are the same projections, and are held once."""

from __future__ import annotations

import torch

from ddtree_engine.drafter import DrafterModel
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
