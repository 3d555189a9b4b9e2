"""Checkpoints in every layout, and what is said of those that can't be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from ddtree_engine.config_fields import MAX_BLOCK_SIZE
from ddtree_engine.config_file import read_drafter_config, read_target_config
from ddtree_engine.drafter import DrafterModel, check_drafter, load_drafter
from ddtree_engine.engine import load_engine
from ddtree_engine.errors import CheckpointError
from ddtree_engine.target import check_target, load_target
from ddtree_engine.tree import MAX_DEPTH
from tests.engine.another_user import as_another_user, readable_copy
from tests.engine.conftest import drafter_config, randomize
from tests.engine.test_transformers_parity import HYBRID

CPU = torch.device("cpu")
DRAFTER: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 6,
    "dflash_config": {"mask_token_id": 10, "target_layer_ids": [0, 2]},
    "num_target_layers": 3,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 11,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 7,
    "max_position_embeddings": 512,
}


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    Qwen3_5ForCausalLM(Qwen3_5TextConfig(**HYBRID)).save_pretrained(folder)
    return folder


@pytest.fixture
def dflash(tmp_path: Path) -> Path:
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DRAFTER))
    model = DrafterModel(drafter_config())
    randomize(model, 0)
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


def test_sharded_and_single_files_are_the_same_model(hybrid: Path) -> None:
    tokens = torch.arange(20)[None]
    single = load_target(hybrid, device=CPU, dtype=torch.float32)
    tensors = load_file(hybrid / "model.safetensors")
    (hybrid / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, hybrid / file)
        weight_map.update(dict.fromkeys(part, file))
    (hybrid / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sharded = load_target(hybrid, device=CPU, dtype=torch.float32)
    assert torch.equal(single.forward_sequence(tokens)[0], sharded.forward_sequence(tokens)[0])
    (hybrid / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002") as error:
        load_target(hybrid, device=CPU, dtype=torch.float32)
    assert error.value.hint == "finish the download of the checkpoint"


def test_the_text_part_of_a_multimodal_checkpoint(hybrid: Path) -> None:
    tokens = torch.arange(20)[None]
    flat = load_target(hybrid, device=CPU, dtype=torch.float32)

    def nest(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            if name.startswith("model."):
                inner = name.removeprefix("model.")
                tensors[f"model.language_model.{inner}"] = tensors.pop(name)
        tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(3)
        tensors["mtp.fc.weight"] = torch.zeros(3)

    rewrite(hybrid, nest)
    text = json.loads((hybrid / "config.json").read_text())
    nested = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    (hybrid / "config.json").write_text(json.dumps(nested))
    model = load_target(hybrid, device=CPU, dtype=torch.float32)
    assert torch.equal(flat.forward_sequence(tokens)[0], model.forward_sequence(tokens)[0])


def test_gates_stay_in_float32(hybrid: Path) -> None:
    model = load_target(hybrid, device=CPU, dtype=torch.bfloat16)
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert kinds["layers.0.linear_attn.A_log"] == torch.float32
    assert kinds["layers.0.linear_attn.dt_bias"] == torch.float32
    assert kinds["layers.0.linear_attn.in_proj_qkv.weight"] == torch.bfloat16


def test_theta_in_either_place_and_the_causal_rule(dflash: Path) -> None:
    top = read_drafter_config(dflash)
    assert (top.rope_theta, top.causal_sliding, top.sliding_window) == (10000.0, True, 7)
    edit(dflash, rope_theta=None, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    assert read_drafter_config(dflash) == top
    edit(dflash, is_causal=False)
    assert not read_drafter_config(dflash).causal_sliding
    edit(dflash, is_causal=True)
    assert read_drafter_config(dflash).causal_sliding
    load_drafter(dflash, device=CPU, dtype=torch.float32)


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    return change


def add(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("model.layers.0.linear_attn.A_log"), "missing: model.layers.0.linear_attn.A_log"),
        (add("model.layers.9.extra.weight", (2,)), "unexpected: model.layers.9.extra.weight"),
        (add("model.norm.weight", (7,)), "model.norm.weight is [7], not [48]"),
    ],
)
def test_tensors_that_do_not_match(
    hybrid: Path, change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    rewrite(hybrid, change)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_target(hybrid, device=CPU, dtype=torch.float32)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        check_target(hybrid)


def test_every_problem_is_named_and_long_lists_are_cut(dflash: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors)[:8]:
            tensors.pop(name)
        tensors["norm.weight"] = torch.zeros(3)
        tensors["lm_head.weight"] = torch.zeros(3)

    rewrite(dflash, change)
    with pytest.raises(CheckpointError) as error:
        check_drafter(dflash)
    assert "and 3 more" in error.value.message
    assert "unexpected: lm_head.weight" in error.value.message
    assert "norm.weight is [3], not [24]" in error.value.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "unknown architecture `LlamaForCausalLM`"),
        ({"architectures": []}, "must name one architecture"),
        ({"architectures": ["DFlashDraftModel"]}, "unknown architecture `DFlashDraftModel`"),
        ({"hidden_size": None}, "hidden_size: Field required"),
        ({"hidden_size": -4}, "hidden_size: Input should be greater than 0"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"linear_num_key_heads": 4}, "multiple of linear_num_key_heads"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
        ({"hidden_act": "gelu"}, "hidden_act `gelu` is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type `yarn`"),
        ({"rope_parameters": None}, "rope_theta is in neither"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type `yarn`"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta: Input should be greater than 0"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 2}}, "less than or eq"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.01}}, "can't turn"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps: Input should be a finite number"),
        ({"text_config": "none"}, "is not usable"),
        ({"hidden_size": 10**30}, "hidden_size: Input should be less than or equal to 16777216"),
        ({"intermediate_size": 1 << 62}, "intermediate_size: Input should be less than or equal"),
        ({"linear_conv_kernel_dim": 10**30}, "linear_conv_kernel_dim: Input should be less than"),
        ({"head_dim": 1 << 24}, "makes a layer wider than 16777216"),
        ({"linear_value_head_dim": 1 << 24}, "linear_value_head_dim 16777216 of"),
        # Would be laid out layer by layer for as long as there is memory.
        ({"num_hidden_layers": 10**10, "layer_types": None}, "num_hidden_layers: Input should be"),
        ({"max_position_embeddings": 1}, "max_position_embeddings: Input should be greater than 1"),
    ],
)
def test_target_configs_that_are_refused(
    hybrid: Path, changes: dict[str, Any], message: str
) -> None:
    edit(hybrid, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)) as error:
        read_target_config(hybrid)
    assert error.value.hint is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen3_5ForCausalLM"]}, "unknown drafter architecture"),
        ({"dflash_config": None}, "dflash_config: Field required"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}}, "target_layer_ids"),
        ({"sliding_window": None}, "needs `sliding_window`"),
        ({"sliding_window": -3}, "needs `sliding_window`, 1 or more"),
        ({"layer_types": None, "use_sliding_window": True}, "needs `layer_types`"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
        ({"block_size": 1}, "block_size"),
        ({"block_size": MAX_BLOCK_SIZE + 1}, "block_size: Input should be less than or equal"),
        ({"head_dim": 7}, "can't turn 7 dimensions"),
        ({"sliding_window": 10**30}, "sliding_window: Input should be less than or equal"),
        ({"num_hidden_layers": 10**10, "layer_types": None}, "num_hidden_layers: Input should be"),
    ],
)
def test_drafter_configs_that_are_refused(
    dflash: Path, changes: dict[str, Any], message: str
) -> None:
    edit(dflash, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_drafter_config(dflash)


def test_the_longest_block_makes_the_deepest_tree() -> None:
    assert MAX_BLOCK_SIZE - 1 == MAX_DEPTH


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
    ],
)
def test_dense_targets_with_a_window_are_refused(
    hybrid: Path, changes: dict[str, Any], message: str
) -> None:
    edit(hybrid, architectures=["Qwen3ForCausalLM"], layer_types=None, num_hidden_layers=3)
    assert read_target_config(hybrid).full_layers == (0, 1, 2)
    edit(hybrid, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_target_config(hybrid)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_numbers_that_need_scales_are_refused(hybrid: Path, dtype: torch.dtype) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(hybrid, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    message = rf"not one of BF16, F16, F32, F64: {re.escape(name)} is (I8|F8_E4M3)"
    with pytest.raises(CheckpointError, match=message):
        load_target(hybrid, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("content", ["[" * 100_000, "[1]", "{", "\ufeff{}"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_json_that_is_no_object_is_one_message(hybrid: Path, file: str, content: str) -> None:
    (hybrid / file).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{re.escape(file)}` (can't be read|holds list)"):
        check_target(hybrid)


@pytest.mark.parametrize("weight_map", [None, {}, [1], {"a": 5}, {"a": ["b"]}])
def test_an_index_that_names_no_files(hybrid: Path, weight_map: Any) -> None:
    (hybrid / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="is not a weight index"):
        check_target(hybrid)


def test_folders_and_files_that_are_not_checkpoints(tmp_path: Path, hybrid: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_target_config(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_target_config(empty)
    (empty / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="can't be read"):
        read_target_config(empty)
    weights = hybrid / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="not a readable safetensors file") as error:
        load_target(hybrid, device=CPU, dtype=torch.float32)
    assert "cut short" in str(error.value.hint)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load_target(hybrid, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_of_another_user(hybrid: Path, file: str) -> None:
    """Not taken for one that is damaged: the libraries that parse it do not always say why."""
    tokenizer = {"model": {"type": "BPE", "vocab": {}, "merges": []}}
    (hybrid / "tokenizer.json").write_text(json.dumps(tokenizer))
    with readable_copy(hybrid) as folder:
        (folder / file).chmod(0)
        with as_another_user(), pytest.raises(CheckpointError) as error:
            load_engine(folder, None, device="cpu")
    assert error.value.message == f"`{folder / file}` can't be read"
    assert f"`namei -l {folder / file}` shows where" in str(error.value.hint)
