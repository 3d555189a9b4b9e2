"""Every op in a CUDA graph: captured once, replayed on other numbers, with no look at the host."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddtree_engine.captured_graph import CapturedGraph
from ddtree_engine.norm import l2_normalize
from ddtree_engine.ops.ancestor_bits import ancestor_bits
from ddtree_engine.ops.conv_commit import conv_commit
from ddtree_engine.ops.draft_trees import draft_trees
from ddtree_engine.ops.drafter_attention import drafter_attention
from ddtree_engine.ops.gated_norm import gated_norm
from ddtree_engine.ops.gdn_commit import gdn_commit
from ddtree_engine.ops.gdn_inputs import gdn_inputs
from ddtree_engine.ops.kv_commit import kv_commit
from ddtree_engine.ops.topk_logprob import topk_logprob
from ddtree_engine.ops.tree_attention import tree_attention
from ddtree_engine.ops.tree_conv import tree_conv
from ddtree_engine.ops.tree_gdn import tree_gdn
from ddtree_engine.ops.tree_walk import tree_walk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

B, BUDGET, DEPTH, WIDTH, ROOM, LAYERS = 2, 16, 7, 5, 300, 2
NODES = BUDGET + 1
KEY_HEADS, VALUE_HEADS, DIM, HEADS, KV_HEADS = 2, 4, 32, 6, 2
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM


def round_inputs(seed: int) -> dict[str, Tensor]:
    """Numbers of one round; those of another seed differ in all, lengths included."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda").to(dtype)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device="cuda")

    return {
        "logits": randn(B * DEPTH, 500, dtype=torch.float32) * 3,
        "anchors": integers(0, 500, B),
        "budgets": integers(1, BUDGET + 1, B),
        "widths": integers(1, WIDTH + 1, B),
        "choices": integers(0, 500, B, NODES),
        "lengths": integers(1, ROOM - NODES, B),
        "mixed": randn(B, NODES, CHANNELS),
        "tail": randn(LAYERS, B, 3, CHANNELS),
        "filter": randn(CHANNELS, 4),
        "a": randn(B, NODES, VALUE_HEADS),
        "b": randn(B, NODES, VALUE_HEADS),
        "A_log": randn(VALUE_HEADS),
        "dt_bias": randn(VALUE_HEADS),
        "factors": randn(B, NODES, dtype=torch.float32).exp(),
        "z": randn(B, NODES, VALUE_HEADS, DIM),
        "norm": randn(DIM),
        "state": randn(LAYERS, B, VALUE_HEADS, DIM, DIM, dtype=torch.float32),
        "q": randn(B, NODES, HEADS, DIM),
        "gate": randn(B, NODES, HEADS, DIM),
        "k": l2_normalize(randn(B, NODES, KV_HEADS, DIM)).bfloat16(),
        "v": randn(B, NODES, KV_HEADS, DIM),
        "keys": randn(LAYERS, B, ROOM, KV_HEADS, DIM),
        "values": randn(LAYERS, B, ROOM, KV_HEADS, DIM),
    }


def one_round(x: dict[str, Tensor]) -> list[Tensor]:
    """Each op once, on what the ones before it found."""
    log_probs, ids = topk_logprob(x["logits"], WIDTH)
    trees = draft_trees(
        x["anchors"],
        log_probs.view(B, DEPTH, WIDTH),
        ids.view(B, DEPTH, WIDTH),
        x["budgets"],
        x["widths"],
        budget=BUDGET,
        conv_kernel=4,
    )
    walk = tree_walk(x["choices"], trees.tokens, trees.parents, trees.sizes, depth=DEPTH)
    convolved = tree_conv(x["mixed"], x["tail"][0], trees.taps, x["filter"])
    scaled, kept = {"row_scale": x["factors"]}, torch.empty_like(x["mixed"])
    inputs = gdn_inputs(
        x["mixed"],
        x["tail"][0],
        trees.taps,
        x["filter"],
        x["a"],
        x["b"],
        x["A_log"],
        x["dt_bias"],
        key_heads=KEY_HEADS,
        key_dim=DIM,
        eps=1e-6,
        kept=kept,
        **scaled,
    )
    bits = ancestor_bits(trees.ancestors)
    assert bits is not None
    recurrent = tree_gdn(*inputs, x["state"][0], trees.ancestors, bits)
    context = (x["keys"][0], x["values"][0], x["lengths"], x["k"], x["v"])
    attended = tree_attention(x["q"], *context, trees.ancestors, DIM**-0.5, x["gate"], **scaled)
    drafted = drafter_attention(x["q"], *context, causal=True, window=40, scale=DIM**-0.5)
    path = (walk.nodes, walk.lengths)
    parts = (kept, x["filter"], *inputs[3:], x["k"], x["v"])
    mixed, filters, log_decays, strengths, k, v = (torch.stack([part] * LAYERS) for part in parts)
    gdn_commit(
        *(mixed, x["tail"], filters, log_decays, strengths, *path, x["state"]),
        key_heads=KEY_HEADS,
        eps=1e-6,
    )
    kv_commit(k, v, *path, x["lengths"], x["keys"], x["values"])
    conv_commit(mixed, *path, x["tail"])
    gated = gated_norm(recurrent, x["z"], x["norm"], 1e-6, **scaled)
    found = [*trees, *walk, bits, convolved, recurrent, attended, drafted, gated]
    return [*found, *(x[name] for name in ("state", "keys", "values", "tail"))]


def test_a_replay_is_the_round_itself() -> None:
    buffers = round_inputs(0)
    one_round(buffers)  # compiles
    # A capture fails where anything waits for the device.
    graph = CapturedGraph(lambda: one_round(buffers), torch.device("cuda", 0))
    for seed in (1, 2):
        fresh = round_inputs(seed)
        for name, tensor in fresh.items():
            buffers[name].copy_(tensor)
        for got, want in zip(graph(), one_round(fresh), strict=True):
            assert torch.equal(got, want)
