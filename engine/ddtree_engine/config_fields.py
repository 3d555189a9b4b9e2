"""What a `config.json` says, field by field, before it becomes a config of this engine.

Unknown keys are other software's business; what would change the model and is not supported is
refused here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ddtree_engine.config import DrafterLayerType, LayerType

MAX_BLOCK_SIZE = 64
"""Longest block of a drafter: the scores of a tree of that depth fit 64 bits (see `tree.py`)."""

MAX_SIZE = 1 << 24
"""Largest dimension of a tensor: the largest vocabularies have a sixtieth of it, and the bytes of a
matrix of that many rows and columns are counted in 64 bits."""

MAX_LAYERS = 4096
"""Most layers; a model is laid out before its weights are looked at."""

Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]


class RawRope(BaseModel):
    """Rotary embeddings, as `rope_parameters` or `rope_scaling` has them."""

    model_config = ConfigDict(extra="allow")

    rope_theta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rope_type: str = "default"
    # What `rope_type` was called in older checkpoints.
    type: str = "default"
    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)


class RawModel(BaseModel):
    """Fields that all three architectures share. Unknown keys are other software's business."""

    model_config = ConfigDict(extra="ignore")

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    hidden_act: str = "silu"
    rms_norm_eps: float = Field(gt=0, allow_inf_nan=False)
    attention_bias: bool = False
    max_position_embeddings: int = Field(gt=1)
    tie_word_embeddings: bool = False
    rope_theta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rope_parameters: RawRope | None = None
    rope_scaling: RawRope | None = None
    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _supported(self) -> RawModel:
        if self.hidden_act != "silu":
            raise ValueError(f"hidden_act `{self.hidden_act}` is not supported, only `silu`")
        if self.attention_bias:
            raise ValueError("attention_bias is not supported")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        _check_width("head_dim", self.num_attention_heads, self.head_dim)
        for rope in (self.rope_parameters, self.rope_scaling):
            for kind in () if rope is None else (rope.rope_type, rope.type):
                if kind != "default":
                    raise ValueError(f"rope_type `{kind}` is not supported, only `default`")
        return self

    @property
    def theta(self) -> float:
        """Base of the rotary frequencies; ValueError where the file has none."""
        # transformers 5 moved rope_theta into rope_parameters; checkpoints of both ages exist.
        inner = self.rope_parameters.rope_theta if self.rope_parameters else None
        theta = inner if inner is not None else self.rope_theta
        if theta is None:
            raise ValueError("rope_theta is in neither `rope_parameters` nor the top level")
        return theta

    def rotary_dim(self, default_factor: float) -> int:
        """Dimensions of a head that are turned; ValueError where they are no pairs."""
        inner = self.rope_parameters.partial_rotary_factor if self.rope_parameters else None
        factor = inner if inner is not None else self.partial_rotary_factor
        return rotated_pairs(int(self.head_dim * (default_factor if factor is None else factor)))


def rotated_pairs(rotary_dim: int) -> int:
    """Return `rotary_dim`; ValueError where it is no number of pairs."""
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"RoPE turns pairs: it can't turn {rotary_dim} dimensions of a head")
    return rotary_dim


def _check_width(name: str, heads: int, size: int) -> None:
    if heads * size > MAX_SIZE:
        raise ValueError(f"{name} {size} of {heads} heads makes a layer wider than {MAX_SIZE}")


def _check_layer_count(layer_types: list[Any] | None, layers: int) -> None:
    if layer_types is not None and len(layer_types) != layers:
        raise ValueError(
            f"layer_types names {len(layer_types)} layers, num_hidden_layers is {layers}"
        )


class RawDense(RawModel):
    """A dense Qwen3 target."""

    layer_types: list[Literal["full_attention"]] | None = None
    use_sliding_window: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> RawDense:
        _check_layer_count(self.layer_types, self.num_hidden_layers)
        if self.use_sliding_window:
            raise ValueError("use_sliding_window is not supported in a target")
        return self


class RawHybrid(RawModel):
    """A Qwen3.5 hybrid target; `text_config` of the multimodal class."""

    linear_num_key_heads: Size
    linear_num_value_heads: Size
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    linear_conv_kernel_dim: int = Field(gt=1, le=MAX_SIZE)
    full_attention_interval: int = Field(default=4, gt=0)
    layer_types: list[LayerType] | None = None
    attn_output_gate: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> RawHybrid:
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ValueError("linear_num_value_heads must be a multiple of linear_num_key_heads")
        for name, size in (
            ("linear_key_head_dim", self.linear_key_head_dim),
            ("linear_value_head_dim", self.linear_value_head_dim),
        ):
            _check_width(name, self.linear_num_value_heads, size)
        _check_layer_count(self.layer_types, self.num_hidden_layers)
        return self


class RawDFlash(BaseModel):
    """What DFlash adds to a drafter."""

    model_config = ConfigDict(extra="ignore")

    mask_token_id: int = Field(ge=0)
    target_layer_ids: list[int] = Field(min_length=1, max_length=MAX_LAYERS)


class RawDrafter(RawModel):
    """A DFlash drafter."""

    block_size: int = Field(gt=1, le=MAX_BLOCK_SIZE)
    dflash_config: RawDFlash
    num_target_layers: Layers
    layer_types: list[DrafterLayerType] | None = None
    sliding_window: int | None = Field(default=None, le=MAX_SIZE)
    use_sliding_window: bool = False
    is_causal: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> RawDrafter:
        if self.layer_types is None:
            if self.use_sliding_window:
                raise ValueError("use_sliding_window needs `layer_types`, to say where")
            return self
        _check_layer_count(self.layer_types, self.num_hidden_layers)
        if "sliding_attention" in self.layer_types and (self.sliding_window or 0) < 1:
            raise ValueError("a sliding_attention layer needs `sliding_window`, 1 or more")
        return self
