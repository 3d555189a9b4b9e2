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
from typing import Any

import torch
import triton
from torch import Tensor

from bench.kernel_inputs import BLOCK, SHAPES, Case, Inputs, size
from bench.layer_cases import (
    attention_case,
    conv_case,
    drafter_case,
    gdn_case,
    gdn_inputs_case,
    norm_case,
)
from bench.round_cases import (
    commit_case,
    conv_commit_case,
    kv_commit_case,
    topk_case,
    trees_case,
    walk_case,
)
from ddtree_engine.captured_graph import CapturedGraph
from ddtree_engine.ops import split_kv
from ddtree_engine.ops.tree_gdn.tiling import Tiling

REPLAYS = 20


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
        # Not 32 values, and not eight warps with two tiles: `choose_tiling` says why.
        *((65, 64, 1, values, warps) for values in (64, 128) for warps in (4, 8)),
        (129, 64, 2, 64, 4),
    ):
        yield rows, gdn_case(inputs, rows, tiling=Tiling(tile, count, values, warps))
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
