"""Compiles every kernel for a GPU that need not be there: `python compile_kernels.py 90 232448`.

Prints a line a kernel: its name and the bytes of shared memory that a block of it needs. The sizes
are those of Qwen3.6-27B.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ddtree_engine.ops import split_kv
from ddtree_engine.ops.ancestor_bits import kernel as ancestor_bits
from ddtree_engine.ops.choose_nodes import kernel as choose_nodes
from ddtree_engine.ops.conv_commit import kernel as conv_commit
from ddtree_engine.ops.draft_trees import kernel as draft_trees
from ddtree_engine.ops.few_rows_linear import kernel as few_rows_linear
from ddtree_engine.ops.gated_norm import kernel as gated_norm
from ddtree_engine.ops.gdn_commit import kernel as gdn_commit
from ddtree_engine.ops.gdn_inputs import kernel as gdn_inputs
from ddtree_engine.ops.inverse_rms import kernel as inverse_rms
from ddtree_engine.ops.kv_commit import kernel as kv_commit
from ddtree_engine.ops.qk_norm_rope import kernel as qk_norm_rope
from ddtree_engine.ops.rms_norm import kernel as rms_norm
from ddtree_engine.ops.sigmoid_gate import kernel as sigmoid_gate
from ddtree_engine.ops.silu_mul import kernel as silu_mul
from ddtree_engine.ops.topk_logprob import kernel as topk_logprob
from ddtree_engine.ops.tree_conv import kernel as tree_conv
from ddtree_engine.ops.tree_gdn import kernel as tree_gdn
from ddtree_engine.ops.tree_gdn.products import Precision
from ddtree_engine.ops.tree_gdn.tiling import choose_tiling
from ddtree_engine.ops.tree_walk import kernel as tree_walk

POINTERS = {
    **dict.fromkeys(["g", "beta", "state", "partial", "log_sums", "largest", "total"], "*fp32"),
    **dict.fromkeys(["cos", "sin", "row_scale"], "*fp32"),
    **dict.fromkeys(["taps", "lengths", "path_lengths", "best", "ids"], "*i64"),
    **dict.fromkeys(["choices", "tokens", "parents", "depths", "sizes", "path", "bonus"], "*i64"),
    **dict.fromkeys(["anchors", "budgets", "widths", "starts", "scores"], "*i64"),
    **dict.fromkeys(["seeds", "top_ks", "chosen"], "*i64"),
    **dict.fromkeys(["noise", "temperatures"], "*fp32"),
    "top_ps": "*fp64",
    **dict.fromkeys(["arrived", "bits"], "*i32"),
    **dict.fromkeys(["scale", "eps"], "fp32"),
    "log_probs": "*fp32",
    "ancestors": "*i1",
}
HALF = (
    {"x", "tail", "weight", "out", "q", "k", "v", "a", "b", "A_log", "dt_bias"}
    | {*("k_context", "v_context", "logits", "gate", "inputs", "tails")}
    | {*("keys", "values", "key_cache", "value_cache")}
    | {*("residual", "normed", "q_weight", "k_weight", "q_out", "k_out", "v_out", "kept")}
)


def shared_bytes(
    kernel: Any,
    capability: int,
    constants: dict[str, Any],
    warps: int = 4,
    stages: int = 3,
    *,
    floats: str = "bf16",
) -> int:
    """Compile `kernel`, with activations and weights in `floats`; its shared memory."""
    names = kernel.arg_names
    types = {
        name: POINTERS.get(name, f"*{floats}" if name in HALF else "i32")
        for name in names
        if name not in constants
    }
    source = ASTSource(
        kernel,
        {name: types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in types.items()
            if kind.startswith("*")
        },
    )
    options = {"num_warps": warps, "num_stages": stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return int(compiled.metadata.shared)


def main() -> None:
    """Compile all of them for a compute capability and its shared memory a block."""
    capability = int(sys.argv[1])
    memory = int(sys.argv[2])

    def show(
        name: str, kernel: Any, constants: dict[str, Any], *options: int, floats: str = "bf16"
    ) -> None:
        need = shared_bytes(kernel, capability, constants, *options, floats=floats)
        print(name, need, flush=True)

    show("tree_conv", tree_conv._tree_conv, {"K": 4, "NODES": 4, "CHANNELS": 256})
    sizes = {"KEY_HEADS": 16, "KEY_DIM": 128, "K": 4, "NODES": 8, "DIM": 128}
    merge = {"GATED": True, "GROUP": 6, "PIECES": 16, "DIM": 256}
    for scaled in (False, True):
        factor, of = {"SCALED": scaled}, " of scaled rows" if scaled else ""
        show(f"gdn_inputs{of}", gdn_inputs._gdn_inputs, {**factor, "KEEPS": True, **sizes})
        rope = {**factor, "ZERO_CENTERED": True, "SIZE": 256}
        show(f"qk_norm_rope{of}", qk_norm_rope._qk_norm_rope, rope, 1)
        show(f"sigmoid_gate{of}", sigmoid_gate._sigmoid_gate, {**factor, "SIZE": 256}, 1)
        show(f"silu_mul{of}", silu_mul._silu_mul, {**factor, "BLOCK": 1024})
        show(f"gated_norm{of}", gated_norm._gated_norm, {**factor, "ROWS": 8, "DIM": 128})
        show(f"merge of attend{of}", split_kv._merge, {**factor, **merge})
    show("rms_norm", rms_norm._rms_norm, {"ZERO_CENTERED": True, "SIZE": 8192}, 16)
    show("inverse_rms", inverse_rms._inverse_rms, {"SIZE": 8192}, 8)
    sizes = {"GROUP": 3, "K": 4, "KEY": 128, "VALUE": gdn_commit.VALUES}
    show("gdn_commit", gdn_commit._gdn_commit, sizes, gdn_commit.WARPS)
    for rows, outputs in ((16, 34816), (32, 5120), (64, 16480)):
        cut = few_rows_linear.choose_tiling(
            rows=rows, outputs=outputs, inputs=5120, memory=memory, processors=132
        )
        sizes = {"X_ROWS": rows, "OUTPUTS": cut.outputs, "COLUMNS": few_rows_linear.COLUMNS}
        sizes["MORE"] = 0
        show(
            f"few_rows_linear of {rows}",
            few_rows_linear._few_rows_linear,
            {**sizes, "SHARED": cut.parts > 1, "ONTO": True},
            4,
            cut.stages,
        )
    bits = {"NODES": ancestor_bits.BLOCK_NODES, "WORDS": 4, "WORD_BITS": 32}
    show("ancestor_bits", ancestor_bits._ancestor_bits, bits, 2)
    dims = {"GROUP": 3, "KEY_DIM": 128, "VALUE_DIM": 128, "KEY": 128}
    for nodes, floats in (
        *((nodes, "bf16") for nodes in (1, 17, 33, 65, 129)),
        *((nodes, "fp16") for nodes in (65, 129)),
        *((nodes, "fp32") for nodes in (17, 65)),
    ):
        precision: Precision = {"fp32": "tf32x3", "fp16": "tf32"}.get(floats, "fp16")
        rows, tiles, values, warps = choose_tiling(nodes, 128, precision)
        cut = {"ROWS": rows, "TILES": tiles, "VALUE": values, "PRECISION": precision}
        name = f"tree_gdn of {nodes} in {floats}"
        show(name, tree_gdn._tree_gdn, {**dims, **cut}, warps, floats=floats)
    show("kv_commit", kv_commit._kv_commit, {"SIZE": 1024})
    show("conv_commit", conv_commit._conv_commit, {"TAIL": 3, "CHANNELS": 1024})
    show("topk_logprob", topk_logprob._best_of_piece, {"K": 16, "SIZE": 2048})
    show("merge of topk", topk_logprob._merge, {"K": 16, "PIECES": 128, "CANDIDATES": 2048})
    show("noise", choose_nodes._make_noise, {"SIZE": choose_nodes.NOISE_PIECE})
    sizes = {"FILTERS": True, "SIZE": choose_nodes.PIECE}
    show("choose_nodes", choose_nodes._choose, sizes, choose_nodes.WARPS)
    for dim, group, own, window, context in (
        *((256, 6, 0, 0, context) for context in (1024, 32768)),
        *((128, 4, 1, 2048, 1024), (128, 4, 2, 0, 1024)),
    ):
        rows, columns, _, warps, stages = split_kv.choose_tiling(
            rows=96, row_bytes=2 * dim, context=context, heads=4, memory=memory, processors=132
        )
        sizes = {"GROUP": group, "ROWS": rows, "COLUMNS": columns, "DIM": dim}
        masks = {"WINDOW": window, "OWN": own, "PRECISION": "tf32x3"}
        show(f"attend {dim} {own} {context}", split_kv._attend, {**sizes, **masks}, warps, stages)
    show("tree_walk", tree_walk._tree_walk, {"DEPTH": 15, "NODES": 256}, 1)
    show("search", draft_trees._search, {"SLOTS": 256}, 1)
    show("lay_out", draft_trees._lay_out, {"TAPS": 4, "NODES": 16, "COLUMNS": 256}, 2)


if __name__ == "__main__":
    main()
