"""Fused projections are the same projections, and are held once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddtree_engine.cache import TargetCache
from ddtree_engine.drafter import DrafterModel
from ddtree_engine.fused_linear import fuse, project_beside
from ddtree_engine.target import TargetModel
from ddtree_engine.tree_batch import TreeBatch
from tests.engine.conftest import drafter_config, randomize, target_config

CPU = torch.device("cpu")


@pytest.mark.parametrize("zero_centered", [True, False])
def test_fusing_changes_no_names_and_only_what_norms_are_folded_into(zero_centered: bool) -> None:
    folded = {
        TargetModel: ("input_layernorm", "post_attention_layernorm"),
        DrafterModel: ("post_attention_layernorm",),
    }
    for model in (
        TargetModel(target_config(zero_centered_norm=zero_centered)),
        DrafterModel(drafter_config()),
    ):
        randomize(model, 1)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.fuse()
        after = model.state_dict()
        assert before.keys() == after.keys()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        for name in changed:
            layer, part, *_ = name.removeprefix("layers.").split(".")
            norms = folded[type(model)]
            if part in norms:
                continue
            assert part == "mlp" or (len(norms) == 2 and part in ("self_attn", "linear_attn"))
            norm = norms[-1] if part == "mlp" else norms[0]
            weight = before[f"layers.{layer}.{norm}.weight"]
            if type(model) is TargetModel and zero_centered:
                weight = 1.0 + weight
            torch.testing.assert_close(after[name], before[name] * weight)
        assert len(changed) > 2 * len(model.decoder_layers())


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


def test_a_pass_over_nodes_is_the_same_with_norms_folded() -> None:
    """The norm after the products, of the target and of the drafter, is the norm before them."""
    target, drafter = TargetModel(target_config()), DrafterModel(drafter_config())
    found = []
    for model in (target, drafter):
        randomize(model, 1)
    for _ in range(2):
        with torch.inference_mode():
            cache = TargetCache(
                target.config, rows=2, max_length=16, dtype=torch.float32, device=CPU
            )
            tokens = torch.arange(10).view(2, 5)
            batch = TreeBatch.chain(tokens, conv_kernel=target.conv_kernel)
            verified = target.verify(batch, cache, slice(0, 2), drafter.config.target_layer_ids)
            assert verified.features is not None
            keys, values = drafter.context(verified.features, torch.arange(5).expand(2, 5))
            block = target.embed(drafter.block_tokens(torch.tensor([3, 7])))
            drafted = drafter.draft(block, keys, values, torch.tensor([5, 4]))
        kept = verified.stash
        found.append([verified.hidden, verified.features, keys, values, drafted])
        found[-1] += [kept.conv_inputs, *kept.log_decays, *kept.strengths, *kept.attention_values]
        target.fuse()
        drafter.fuse()
    for folded, apart in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(folded, apart, atol=1e-5, rtol=1e-4)


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
        got, meanwhile = project_beside(x, fused, *linears)
        with meanwhile:
            pass
        want = torch.cat([x.double() @ one.weight.double().T for one in linears], dim=-1)
    torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=2e-2)
