"""Checks and times every kernel on its own: `python -m bench.kernels [--shape qwen3.6-27b]`.

Each op runs for all layers of a model, every layer with tensors of its own, in one CUDA graph, as
it does in a round; a time is the median of the graph's replays over its calls. Beside it stands the
time that the bytes alone would take at the bandwidth of a large copy, measured in the same run. The
error is that of the kernel's output against PyTorch in float64 on the same inputs,
||out - ref|| / ||ref||.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from ddtree_engine.captured_graph import CapturedGraph
from ddtree_engine.ops import split_kv
from ddtree_engine.ops.conv_commit import kernel as conv_commit
from ddtree_engine.ops.conv_commit import vectorized as conv_commit_torch
from ddtree_engine.ops.draft_trees import kernel as draft_trees
from ddtree_engine.ops.draft_trees import vectorized as draft_trees_torch
from ddtree_engine.ops.drafter_attention import kernel as drafter_attention
from ddtree_engine.ops.drafter_attention import vectorized as drafter_attention_torch
from ddtree_engine.ops.gated_norm import kernel as gated_norm
from ddtree_engine.ops.gated_norm import vectorized as gated_norm_torch
from ddtree_engine.ops.gdn_commit import kernel as gdn_commit
from ddtree_engine.ops.gdn_commit import vectorized as gdn_commit_torch
from ddtree_engine.ops.gdn_inputs import kernel as gdn_inputs
from ddtree_engine.ops.gdn_inputs import vectorized as gdn_inputs_torch
from ddtree_engine.ops.kv_commit import kernel as kv_commit
from ddtree_engine.ops.kv_commit import vectorized as kv_commit_torch
from ddtree_engine.ops.topk_logprob import kernel as topk_logprob
from ddtree_engine.ops.topk_logprob import vectorized as topk_logprob_torch
from ddtree_engine.ops.tree_attention import kernel as tree_attention
from ddtree_engine.ops.tree_attention import vectorized as tree_attention_torch
from ddtree_engine.ops.tree_conv import kernel as tree_conv
from ddtree_engine.ops.tree_conv import vectorized as tree_conv_torch
from ddtree_engine.ops.tree_gdn import kernel as tree_gdn
from ddtree_engine.ops.tree_gdn import vectorized as tree_gdn_torch
from ddtree_engine.ops.tree_walk import kernel as tree_walk
from ddtree_engine.ops.tree_walk import vectorized as tree_walk_torch

BLOCK = 16
REPLAYS = 20


@dataclass(frozen=True)
class Shape:
    """The sizes of a target and its drafter that kernels see."""

    linear_layers: int
    key_heads: int
    value_heads: int
    linear_dim: int
    full_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    drafter_layers: int
    drafter_heads: int
    drafter_kv_heads: int
    drafter_head_dim: int
    vocab: int

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values of a recurrent layer side by side."""
        return (2 * self.key_heads + self.value_heads) * self.linear_dim


SHAPES = {
    "demo": Shape(6, 3, 6, 32, 2, 4, 2, 64, 3, 4, 2, 64, 4096),
    "qwen3.6-27b": Shape(48, 16, 48, 128, 16, 24, 4, 256, 5, 32, 8, 128, 248320),
}


@dataclass(frozen=True)
class Case:
    """One op at one size.

    Attributes:
        name: of the row in the table.
        calls: one a layer, each with its own inputs.
        plain: the same through PyTorch, in the dtypes in which the engine calls it.
        reference: float64 output of the first call, by PyTorch.
        moved: bytes that a call must read and write at least.
    """

    name: str
    calls: list[Callable[[], Any]]
    plain: list[Callable[[], Any]]
    reference: Callable[[], Tensor | tuple[Tensor, ...]]
    moved: int


class Inputs:
    """Random tensors on one device."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.generator = torch.Generator(device).manual_seed(0)

    def randn(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Normal numbers."""
        return torch.randn(size, generator=self.generator, device=self.device).to(dtype)

    def parents(self, nodes: int) -> list[int]:
        """A tree such as best-first search makes: early nodes have most of the children."""
        generator = torch.Generator().manual_seed(nodes)
        parents, depths = [-1], [0]
        while len(parents) < nodes:
            reach = 1 + int(len(parents) * torch.rand((), generator=generator) ** 2)
            parent = min(reach, len(parents)) - 1
            if depths[parent] < BLOCK - 1:
                parents.append(parent)
                depths.append(depths[parent] + 1)
        return parents

    def ancestors(self, nodes: int) -> Tensor:
        """[1, N, N] bool."""
        mask = torch.eye(nodes, dtype=torch.bool)
        for node, parent in enumerate(self.parents(nodes)):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask[None].to(self.device)

    def taps(self, nodes: int, taps: int = 4) -> Tensor:
        """[1, N, taps] int64 as `tree_conv` takes them."""
        rows = torch.empty(nodes, taps, dtype=torch.int64)
        for node, parent in enumerate(self.parents(nodes)):
            rows[node, :-1] = rows[parent, 1:] if parent >= 0 else torch.arange(taps - 1)
            rows[node, -1] = taps - 1 + node
        return rows[None].to(self.device)

    def gdn(self, nodes: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Arguments of `tree_gdn` of one layer, but for `ancestors`."""
        one, single = self.shape, torch.float32

        def unit(*size: int) -> Tensor:
            return torch.nn.functional.normalize(self.randn(*size, dtype=single), dim=-1)

        heads, dim = one.value_heads, one.linear_dim
        return {
            "q": (unit(1, nodes, one.key_heads, dim) * dim**-0.5).to(dtype),
            "k": unit(1, nodes, one.key_heads, dim).to(dtype),
            "v": self.randn(1, nodes, heads, dim, dtype=dtype),
            "g": -self.randn(1, nodes, heads, dtype=single).exp() * 0.1,
            "beta": self.randn(1, nodes, heads, dtype=single).sigmoid(),
            "state": self.randn(1, heads, dim, dim, dtype=single),
        }


def single(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with every float in float32."""
    return {
        name: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }


def double(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with every float in float64."""
    return {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }


def size(*tensors: Tensor) -> int:
    """Bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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


def flat(op: Callable[..., tuple[Tensor, ...]], **arguments: Any) -> tuple[Tensor, ...]:
    """What an op of several outputs returns, as a plain tuple."""
    return tuple(op(**arguments))


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
    precision: tree_gdn.Precision | None = None,
    tiling: tree_gdn.Tiling | None = None,
) -> Case:
    """The recurrence of one layer over the tree."""
    ancestors = inputs.ancestors(nodes)
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
        [partial(tree_gdn.tree_gdn, **one, precision=precision, tiling=tiling) for one in layers],
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


def commit_case(inputs: Inputs, accepted: int) -> Case:
    """Replay of a path of `accepted` out of 65 nodes in all layers, one launch."""
    one, gates = inputs.shape, (inputs.shape.linear_layers, 1, 65, inputs.shape.value_heads)
    channels = (2 * one.key_heads + one.value_heads) * one.linear_dim
    tensors = {
        "inputs": inputs.randn(one.linear_layers, 1, 65, channels),
        "tails": inputs.randn(one.linear_layers, 1, 3, channels),
        "weight": inputs.randn(one.linear_layers, channels, 4) / 2,
        "g": -inputs.randn(*gates, dtype=torch.float32).exp() / 8,
        "beta": inputs.randn(*gates, dtype=torch.float32).sigmoid(),
        "path_lengths": torch.tensor([accepted], device=inputs.device),
        "nodes": path(inputs)["nodes"],
    }
    states = (one.linear_layers, 1, one.value_heads, one.linear_dim, one.linear_dim)
    state = inputs.randn(*states, dtype=torch.float32)
    exact = state.double()

    def call(op: Callable[..., None], state: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        op(**tensors, state=state, key_heads=one.key_heads, eps=1e-6)
        return state

    return Case(
        f"gdn_commit of {accepted}",
        [partial(call, gdn_commit.gdn_commit, state, tensors)],
        [partial(call, gdn_commit_torch.gdn_commit, state, tensors)],
        lambda: call(gdn_commit_torch.gdn_commit, exact, double(tensors)),
        2 * size(state),
    )


def trees_case(inputs: Inputs, budget: int) -> Case:
    """Trees of one request from a block's candidates, eight a depth."""
    logits = inputs.randn(1, BLOCK - 1, 4096, dtype=torch.float32) * 3
    log_probs, ids = logits.log_softmax(-1).topk(8)
    one = torch.ones(1, dtype=torch.int64, device=inputs.device)
    arguments: dict[str, Any] = {
        "anchors": one,
        "log_probs": log_probs,
        "ids": ids,
        "budgets": budget * one,
        "widths": 8 * one,
        "budget": budget,
        "conv_kernel": 4,
    }
    plain = partial(flat, draft_trees_torch.draft_trees, **arguments)
    return Case(
        f"draft_trees of {budget}",
        [partial(flat, draft_trees.draft_trees, **arguments)] * 8,
        [plain] * 8,
        plain,
        size(log_probs, ids) + (budget + 1) * (budget + 57),
    )


def walk_case(inputs: Inputs, nodes: int) -> Case:
    """The walk down one request's tree, all of whose first children the target chooses."""
    parents = inputs.parents(nodes)
    tokens = torch.arange(nodes)
    choices = torch.full((nodes,), nodes)
    for node in reversed(range(1, nodes)):
        choices[parents[node]] = node
    choices, tokens, above = (
        x[None].to(inputs.device) for x in (choices, tokens, torch.tensor(parents))
    )
    sizes = torch.tensor([nodes], device=inputs.device)
    tensors = {"choices": choices, "tokens": tokens, "parents": above, "sizes": sizes}
    plain = partial(flat, tree_walk_torch.tree_walk, **tensors, depth=BLOCK - 1)
    return Case(
        "tree_walk",
        [partial(flat, tree_walk.tree_walk, **tensors, depth=BLOCK - 1)] * 8,
        [plain] * 8,
        plain,
        size(*tensors.values()),
    )


def path(inputs: Inputs) -> dict[str, Tensor]:
    """An accepted path of a whole block, its nodes apart from each other."""
    return {
        "nodes": 4 * torch.arange(BLOCK, device=inputs.device)[None],
        "path_lengths": torch.tensor([BLOCK], device=inputs.device),
    }


def kv_commit_case(inputs: Inputs) -> Case:
    """Keys and values of a path of 16 out of 65 nodes into the cache, all layers in one launch."""
    one = inputs.shape
    row = (one.kv_heads, one.head_dim)
    tree = [inputs.randn(one.full_layers, 1, 65, *row) for _ in range(2)]
    cache = [inputs.randn(one.full_layers, 1, 2048, *row) for _ in range(2)]
    plain_cache = [tensor.double() for tensor in cache]
    accepted = {**path(inputs), "starts": torch.tensor([1000], device=inputs.device)}

    def call(op: Callable[..., None], keys: Tensor, values: Tensor, *into: Tensor) -> Any:
        op(keys, values, *accepted.values(), *into)
        return into

    return Case(
        "kv_commit of 16",
        [partial(call, kv_commit.kv_commit, *tree, *cache)] * 4,
        [partial(call, kv_commit_torch.kv_commit, *tree, *cache)] * 4,
        partial(call, kv_commit_torch.kv_commit, *(x.double() for x in tree), *plain_cache),
        2 * size(*tree) * BLOCK // 65,
    )


def conv_commit_case(inputs: Inputs) -> Case:
    """Convolution inputs of a path of 16 out of 65 nodes into the tails, all layers in one."""
    one = inputs.shape
    tree = inputs.randn(one.linear_layers, 1, 65, one.conv_channels)
    tails = inputs.randn(one.linear_layers, 1, 3, one.conv_channels)
    accepted = path(inputs)

    def call(op: Callable[..., None], tree: Tensor, tails: Tensor) -> Tensor:
        op(tree, *accepted.values(), tails)
        return tails

    return Case(
        "conv_commit of 16",
        [partial(call, conv_commit.conv_commit, tree, tails)] * 4,
        [partial(call, conv_commit_torch.conv_commit, tree, tails)] * 4,
        partial(call, conv_commit_torch.conv_commit, tree.double(), tails.double()),
        2 * size(tails),
    )


def topk_case(inputs: Inputs, k: int, dtype: torch.dtype) -> Case:
    """Candidates of a block's rows."""
    rows = [inputs.randn(BLOCK - 1, inputs.shape.vocab, dtype=dtype) * 3 for _ in range(8)]
    return Case(
        f"topk_logprob {k} of {str(dtype)[6:]}",
        [partial(flat, topk_logprob.topk_logprob, logits=one, k=k) for one in rows],
        [partial(flat, topk_logprob_torch.topk_logprob, logits=one, k=k) for one in rows],
        lambda: flat(topk_logprob_torch.topk_logprob, logits=rows[0].double(), k=k),
        size(rows[0]),
    )


def microseconds(calls: list[Callable[[], Any]]) -> float:
    """Time of a call: the median of the replays of a CUDA graph of all of them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = CapturedGraph(lambda: [call() for call in calls], torch.device("cuda", 0))
    times = []
    for _ in range(3 + REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times[3:]) * 1e3 / len(calls))


def bandwidth() -> float:
    """Bytes read and written a microsecond by a copy of 2 GiB."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    # Not copy_: in a graph that is a node of its own kind, and slower than a kernel.
    return 2 * size(source) / microseconds([lambda: torch.neg(source, out=target)])


def cases(inputs: Inputs, nodes: list[int], prefix: int) -> Iterator[tuple[int, Case]]:
    """Every op at every number of rows."""
    for rows in nodes:
        yield rows, conv_case(inputs, rows)
        yield rows, gdn_inputs_case(inputs, rows)
        yield rows, norm_case(inputs, rows)
        yield rows, gdn_case(inputs, rows)
        yield rows, attention_case(inputs, rows, prefix)
    for rows in (17, 33, 65, 129):
        yield rows, gdn_case(inputs, rows, torch.float32)
        yield rows, gdn_case(inputs, rows, torch.float32, "tf32")
        yield rows, walk_case(inputs, rows)
    for length in (prefix, 8192, 32768):
        for rows in (17, 65, 129) if length != prefix else ():
            yield rows, attention_case(inputs, rows, length)
        yield BLOCK, drafter_case(inputs, length, None)
        yield BLOCK, drafter_case(inputs, length, 2048)
    for rows in (17, 65):
        yield rows, attention_case(inputs, rows, prefix, room=32768)
    for budget in (16, 32, 64, 128):
        yield budget + 1, trees_case(inputs, budget)
    yield BLOCK, kv_commit_case(inputs)
    yield BLOCK, conv_commit_case(inputs)
    for accepted in (1, 8, 16):
        yield accepted, commit_case(inputs, accepted)
    yield BLOCK - 1, topk_case(inputs, 8, torch.float32)
    yield BLOCK - 1, topk_case(inputs, 16, torch.bfloat16)


def tilings(inputs: Inputs, prefix: int) -> Iterator[tuple[int, Case]]:
    """Other ways to cut the two kernels that have a choice."""
    for rows, tile, count, values, warps in (
        *((17, 16, 1, values, warps) for values in (16, 32, 64) for warps in (1, 2, 4)),
        *((33, 32, 1, values, warps) for values in (32, 64) for warps in (2, 4)),
        # Not 32 values, and not eight warps with two tiles: `tree_gdn.choose_tiling` says why.
        *((65, 64, 1, values, warps) for values in (64, 128) for warps in (4, 8)),
        (129, 64, 2, 64, 4),
    ):
        yield rows, gdn_case(inputs, rows, tiling=tree_gdn.Tiling(tile, count, values, warps))
    for rows in (17, 65, 129):
        for tile, columns, warps, stages in (
            *((64, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (64, 32, 4, 3)),
            *((128, 64, 8, 2), (128, 32, 8, 2)),
        ):
            for pieces in (2, 4, 8, 16, 32):
                choice = split_kv.Tiling(tile, columns, pieces, warps, stages)
                yield rows, attention_case(inputs, rows, prefix, choice)


def error(case: Case, call: Callable[[], Any]) -> float:
    """Relative error of the first call; the largest, if it returns several tensors."""
    expected, found = case.reference(), call()
    pairs = (
        [(found, expected)] if isinstance(expected, Tensor) else zip(found, expected, strict=True)
    )
    return max(
        float((got.double() - want.double()).norm() / want.double().norm()) for got, want in pairs
    )


def measure(shape: str, nodes: list[int], prefix: int, *, form: str, sweep: bool) -> None:
    """Print the table of a shape."""
    inputs = Inputs(SHAPES[shape], torch.device("cuda"))
    rate = bandwidth()
    print(f"\n{shape}, prefix {prefix}, {form}; a large copy moves {rate / 1e6:.2f} TB/s")
    print(f"{'rows':>4}  {'kernel':<44} {'us':>8} {'floor us':>9} {'error':>9}")
    chosen = tilings(inputs, prefix) if sweep else cases(inputs, nodes, prefix)
    for rows, case in chosen:
        try:
            calls = case.calls if form == "triton" else case.plain
            off, taken = error(case, calls[0]), microseconds(calls)
        except Exception as failure:  # noqa: BLE001 - a tiling that does not fit is one row
            print(
                f"{rows:>4}  {case.name:<44} {type(failure).__name__}: {failure}"[:160], flush=True
            )
            continue
        floor = case.moved / rate
        print(f"{rows:>4}  {case.name:<44} {taken:8.1f} {floor:9.1f} {off:9.1e}", flush=True)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES], action="append")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 17, 33, 64, 65, 129])
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--form", choices=["triton", "torch"], default="triton")
    parser.add_argument("--sweep", action="store_true", help="other tilings of the kernels")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device to measure on")
    if arguments.sweep and arguments.form == "torch":
        parser.error("only the kernels have tilings to sweep")
    gpu = torch.cuda.get_device_properties(0)
    print(f"{gpu.name}, {gpu.multi_processor_count} multiprocessors", end=", ")
    print(f"torch {torch.__version__}, triton {triton.__version__}")
    for shape in arguments.shape or SHAPES:
        measure(
            shape,
            arguments.nodes,
            arguments.prefix,
            form=arguments.form,
            sweep=arguments.sweep,
        )


if __name__ == "__main__":
    main()
