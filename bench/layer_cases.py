"""Ops that every layer of a pass runs, of the target and of the drafter, one case each."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.kernel_inputs import BLOCK, Case, Inputs, double, flat, single, size
from ddtree_engine.ops import split_kv
from ddtree_engine.ops.ancestor_bits import kernel as ancestor_bits
from ddtree_engine.ops.drafter_attention import kernel as drafter_attention
from ddtree_engine.ops.drafter_attention import vectorized as drafter_attention_torch
from ddtree_engine.ops.gated_norm import kernel as gated_norm
from ddtree_engine.ops.gated_norm import vectorized as gated_norm_torch
from ddtree_engine.ops.gdn_inputs import kernel as gdn_inputs
from ddtree_engine.ops.gdn_inputs import vectorized as gdn_inputs_torch
from ddtree_engine.ops.tree_attention import kernel as tree_attention
from ddtree_engine.ops.tree_attention import vectorized as tree_attention_torch
from ddtree_engine.ops.tree_conv import kernel as tree_conv
from ddtree_engine.ops.tree_conv import vectorized as tree_conv_torch
from ddtree_engine.ops.tree_gdn import kernel as tree_gdn
from ddtree_engine.ops.tree_gdn import vectorized as tree_gdn_torch
from ddtree_engine.ops.tree_gdn.products import Precision
from ddtree_engine.ops.tree_gdn.tiling import Tiling


def conv_case(inputs: Inputs, nodes: int) -> Case:
    """Convolution and SiLU of one recurrent layer."""
    C = inputs.shape.conv_channels
    taps = inputs.taps(nodes)
    layers = [
        {
            "x": inputs.randn(1, nodes, C),
            "tail": inputs.randn(1, 3, C),
            "taps": taps,
            "weight": inputs.randn(C, 4),
        }
        for _ in range(inputs.shape.linear_layers)
    ]
    first = layers[0]
    return Case(
        "tree_conv",
        [partial(tree_conv.tree_conv, **one) for one in layers],
        [partial(tree_conv_torch.tree_conv, **one) for one in layers],
        lambda: tree_conv_torch.tree_conv(**double(first)),
        2 * size(first["x"]) + size(first["tail"], first["weight"]),
    )


def gdn_inputs_case(inputs: Inputs, nodes: int) -> Case:
    """Convolution, norms and gates of one recurrent layer; the error is of all five outputs."""
    one = inputs.shape
    C, taps = one.conv_channels, inputs.taps(nodes)
    fused = [inputs.randn(1, nodes, C + 2 * one.value_heads) for _ in range(one.linear_layers)]

    def layer(projected: Tensor) -> dict[str, Any]:
        x, a, b = torch.split(projected, [C, one.value_heads, one.value_heads], dim=-1)
        return {
            "x": x,
            "tail": inputs.randn(1, 3, C),
            "taps": taps,
            "weight": inputs.randn(C, 4),
            "a": a,
            "b": b,
            "A_log": inputs.randn(one.value_heads),
            "dt_bias": inputs.randn(one.value_heads),
            "key_heads": one.key_heads,
            "key_dim": one.linear_dim,
            "eps": 1e-6,
            "row_scale": inputs.row_scale(nodes),
        }

    layers = [layer(projected) for projected in fused]
    first = layers[0]
    return Case(
        "gdn_inputs",
        [partial(flat, gdn_inputs.gdn_inputs, **one) for one in layers],
        [partial(flat, gdn_inputs_torch.gdn_inputs, **one) for one in layers],
        lambda: flat(gdn_inputs_torch.gdn_inputs, **double(first)),
        2 * size(fused[0]) + size(first["tail"], first["weight"]),
    )


def norm_case(inputs: Inputs, nodes: int) -> Case:
    """Norm and gate of one recurrent layer's outputs."""
    one = inputs.shape
    sizes = (1, nodes, one.value_heads, one.linear_dim)
    layers: list[dict[str, Any]] = [
        {
            "x": inputs.randn(*sizes),
            "gate": inputs.randn(*sizes),
            "weight": inputs.randn(one.linear_dim),
            "eps": 1e-6,
            "row_scale": inputs.row_scale(nodes),
        }
        for _ in range(one.linear_layers)
    ]
    first = layers[0]
    return Case(
        "gated_norm",
        [partial(gated_norm.gated_norm, **one) for one in layers],
        [partial(gated_norm_torch.gated_norm, **one) for one in layers],
        lambda: gated_norm_torch.gated_norm(**double(first)),
        3 * size(first["x"]),
    )


def gdn_case(
    inputs: Inputs,
    nodes: int,
    dtype: torch.dtype = torch.bfloat16,
    precision: Precision | None = None,
    tiling: Tiling | None = None,
) -> Case:
    """The recurrence of one layer over the tree, whose bits a pass makes once."""
    ancestors = inputs.ancestors(nodes)
    bits = ancestor_bits.ancestor_bits(ancestors)
    run = partial(tree_gdn.tree_gdn, bits=bits, precision=precision, tiling=tiling)
    layers = [
        {**inputs.gdn(nodes, dtype), "ancestors": ancestors}
        for _ in range(inputs.shape.linear_layers)
    ]
    first = layers[0]
    name = "tree_gdn" if dtype == torch.bfloat16 else f"tree_gdn {str(dtype)[6:]}"
    if precision is not None:
        name += f" {precision}"
    if tiling is not None:
        name += f" {tiling.rows}x{tiling.tiles} dv {tiling.values} warps {tiling.warps}"
    return Case(
        name,
        [partial(run, **one) for one in layers],
        [partial(tree_gdn_torch.tree_gdn, **single(one)) for one in layers],
        lambda: tree_gdn_torch.tree_gdn(**double(first)),
        size(*(first[n] for n in ("q", "k", "v", "v", "g", "beta", "state"))),
    )


def attention_case(
    inputs: Inputs,
    nodes: int,
    prefix: int,
    tiling: split_kv.Tiling | None = None,
    *,
    room: int | None = None,
) -> Case:
    """Full attention of one layer to the prefix, in a cache of `room` rows, and the tree."""
    one = inputs.shape
    lengths = torch.tensor([prefix], device=inputs.device)
    ancestors = inputs.ancestors(nodes)

    def layer() -> dict[str, Any]:
        kv = (one.kv_heads, one.head_dim)
        return {
            "q": inputs.randn(1, nodes, one.heads, one.head_dim),
            "k_prefix": inputs.randn(1, room or prefix, *kv),
            "v_prefix": inputs.randn(1, room or prefix, *kv),
            "lengths": lengths,
            "k": inputs.randn(1, nodes, *kv),
            "v": inputs.randn(1, nodes, *kv),
            "ancestors": ancestors,
            "scale": one.head_dim**-0.5,
        }

    layers = [layer() for _ in range(inputs.shape.full_layers)]
    first = layers[0]
    name = f"tree_attention over {prefix}" + (f" in a cache of {room}" if room else "")
    if tiling is not None:
        name += f" {tuple(tiling)}"
    return Case(
        name,
        [partial(tree_attention.tree_attention, **one, tiling=tiling) for one in layers],
        [partial(tree_attention_torch.tree_attention, **one) for one in layers],
        lambda: tree_attention_torch.tree_attention(**double(first)),
        size(*(first[n] for n in ("q", "q", "k", "v")))
        + size(first["k_prefix"], first["v_prefix"]) * prefix // (room or prefix),
    )


def drafter_case(inputs: Inputs, context: int, window: int | None) -> Case:
    """Attention of one drafter layer's block to the context and itself."""
    one = inputs.shape
    lengths = torch.tensor([context], device=inputs.device)

    def layer() -> dict[str, Any]:
        kv = (one.drafter_kv_heads, one.drafter_head_dim)
        return {
            "q": inputs.randn(1, BLOCK, one.drafter_heads, one.drafter_head_dim),
            "k_context": inputs.randn(1, context, *kv),
            "v_context": inputs.randn(1, context, *kv),
            "lengths": lengths,
            "k": inputs.randn(1, BLOCK, *kv),
            "v": inputs.randn(1, BLOCK, *kv),
            "causal": window is not None,
            "window": window,
            "scale": one.drafter_head_dim**-0.5,
        }

    layers = [layer() for _ in range(one.drafter_layers)]
    first = layers[0]
    seen = min(context, window or context) / context
    return Case(
        f"drafter_attention over {context}" + (" sliding" if window else ""),
        [partial(drafter_attention.drafter_attention, **one) for one in layers],
        [partial(drafter_attention_torch.drafter_attention, **one) for one in layers],
        lambda: drafter_attention_torch.drafter_attention(**double(first)),
        int(size(first["k_context"], first["v_context"]) * seen)
        + size(*(first[n] for n in ("q", "q", "k", "v"))),
    )
