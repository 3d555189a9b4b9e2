"""`ddtree-engine bench`: whole rounds against the floor of their matrix products."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ddtree_engine.errors import EngineError

if TYPE_CHECKING:
    from ddtree_engine.bench.rounds import Bench, Measured

SUMMARY = "Time rounds of a model's shape, with random weights, against their matrix products."

DEFAULT_MODES = "ar,linear,tree:16,tree:32,tree:63,tree:64,tree:128"
PROFILED_ROUNDS = 5
SHOWN_KERNELS = 25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench`."""
    parser.add_argument(
        "--shape",
        default="demo",
        metavar="NAME|DIR",
        help="`demo`, `qwen3.6-27b`, a model folder (its config.json is enough), or a folder with "
        "one in `target` and one in `drafter` (default demo)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--modes", default=DEFAULT_MODES, help=f"default {DEFAULT_MODES}")
    parser.add_argument(
        "--budget",
        type=int,
        default=16,
        metavar="N",
        help="nodes of a `tree` that names no budget of its own (default 16)",
    )
    parser.add_argument("--topk", type=int, default=8, help="candidates a depth (default 8)")
    parser.add_argument(
        "--prefix", default="1024", metavar="N,N", help="committed tokens (default 1024)"
    )
    parser.add_argument("--rows", type=int, default=1, help="requests of a round (default 1)")
    parser.add_argument("--runs", type=int, default=20, help="of each figure (default 20)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--no-stages", action="store_true", help="time whole rounds only")
    parser.add_argument(
        "--profile", action="store_true", help="list the kernels of each mode's round (GPU only)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from ddtree_engine.bench.random_model import random_models, shape_folder
    from ddtree_engine.bench.rounds import Bench
    from ddtree_engine.comparison import label, parse_mode
    from ddtree_engine.engine import choose_device, choose_dtype
    from ddtree_engine.sampling import SamplingParams
    from ddtree_engine.sequence import Mode

    for option, number in (("--rows", arguments.rows), ("--runs", arguments.runs)):
        if number < 1:
            raise EngineError(f"{option} must be 1 or more, got {number}")
    prefixes = _prefixes(arguments.prefix)
    modes = [
        parse_mode(text.strip(), arguments.topk, arguments.budget)
        for text in arguments.modes.split(",")
    ]
    sampling = SamplingParams(temperature=arguments.temperature)
    device = choose_device(arguments.device)
    folder = shape_folder(arguments.shape)
    dtype = choose_dtype(arguments.dtype, device)
    target, drafter = random_models(folder, device=device, dtype=dtype)
    if drafter is None:
        modes = [one for one in modes if one.mode is Mode.AR]
    if any(one.mode is Mode.SHADOW or one.auto for one in modes) or not modes:
        raise EngineError(
            "bench times `ar`, `linear` and `tree` with a budget in numbers; the last two need a "
            "drafter"
        )
    bench = Bench(target, drafter, rows=arguments.rows, max_length=max(prefixes))
    document: dict[str, Any] = {"shape": arguments.shape, "rows": arguments.rows, **_machine()}
    document["dtype"] = str(dtype).removeprefix("torch.")
    document["device"] = str(device)
    rounds, profiles = [], {}
    if not arguments.json:
        print("  ".join(f"{name}: {value}" for name, value in document.items()))
        print(f"{'mode':<10} {'nodes':>5} {'prefix':>7} {'round ms':>9} {'floor ms':>9} ratio")
    for prefix in prefixes:
        for mode in modes:
            found = bench.run(
                mode,
                prefix,
                runs=arguments.runs,
                stages=not arguments.no_stages,
                sampling=sampling,
            )
            rounds.append(_facts(found))
            if not arguments.json:
                _print(found)
    if arguments.profile:
        for mode in modes:
            profiles[label(mode)] = _profile(bench, mode, prefixes[0], arguments.json)
    if arguments.json:
        print(json.dumps({**document, "rounds": rounds, "profiles": profiles}))
    return 0


def _prefixes(text: str) -> list[int]:
    try:
        prefixes = [int(one) for one in text.split(",")]
    except ValueError:
        prefixes = []
    if not prefixes or min(prefixes) < 1:
        raise EngineError(f"--prefix takes numbers of 1 or more with commas, got `{text}`")
    return prefixes


def _machine() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__}
    if torch.cuda.is_available():
        import triton

        facts["gpu"] = torch.cuda.get_device_name()
        facts["triton"] = triton.__version__
    return facts


def _facts(one: Measured) -> dict[str, Any]:
    """JSON of one measurement, times in ms."""
    facts = asdict(one)
    for name in ("round", "floor"):
        facts[name] = {"median": getattr(one, name).median, "runs": getattr(one, name).runs}
    facts["stages"] = {name: timing.median for name, timing in one.stages.items()}
    facts["ratio"] = one.ratio
    return facts


def _print(one: Measured) -> None:
    stages = ", ".join(f"{name} {timing.median:.3f}" for name, timing in one.stages.items())
    spread = f"{min(one.round.runs):.3f} to {max(one.round.runs):.3f}"
    print(
        f"{one.mode:<10} {one.nodes:>5} {one.prefix:>7} {one.round.median:>9.3f} "
        f"{one.floor.median:>9.3f} {one.ratio:.3f}  ({spread}; state "
        f"{one.state_bytes / 2**20:.1f} MiB)  {stages}",
        flush=True,
    )


def _profile(bench: Bench, mode: Any, prefix: int, quiet: bool) -> dict[str, Any]:
    from ddtree_engine.bench.profile import profile
    from ddtree_engine.bench.timing import graphed
    from ddtree_engine.comparison import label
    from ddtree_engine.sampling import SamplingParams

    if bench.device.type != "cuda":
        raise EngineError("--profile needs a GPU")
    import torch

    with torch.inference_mode():
        shape = bench.shape(mode, prefix, SamplingParams())
        bench.place(shape, prefix, SamplingParams())
        work = graphed(bench.round_of(shape), bench.device)
        found = profile(work, lambda: bench.state.lengths.fill_(prefix), PROFILED_ROUNDS)
    if not quiet:
        print(f"{label(mode)}: span {found.span:.3f} ms, busy {found.busy:.3f} ms a round")
        for kernel in found.kernels[:SHOWN_KERNELS]:
            print(f"  {kernel.milliseconds:>8.4f} ms {kernel.calls:>6.1f} x  {kernel.name[:90]}")
    return asdict(found)
