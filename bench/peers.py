"""Times what a user would run instead, beside the engine: `python -m bench.peers --help`.

- Transformers' own model of the 27B shape, one token after the other: as it is, and compiled with a
  static cache.
- The published code of DDTree (Ringel and Romano, arXiv:2604.12989) on the shape of Qwen3-8B, from
  a checkout that `--ddtree-reference` names.
- This engine's rounds of both shapes.

Weights are random and made on the GPU; drafts are hardly ever accepted, so what is compared is the
time of a round and not tokens a second. Each peer is a process of its own, which frees its memory
and may fail alone. With `--together` the compiled model compiles while the others are measured; no
two measure at the same time.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bench import ddtree_reference, transformers_model
from ddtree_engine.bench.random_model import random_models, shape_folder
from ddtree_engine.bench.rounds import Bench
from ddtree_engine.comparison import parse_mode

HYBRID, DENSE = "qwen3.6-27b", "qwen3-8b"
RUNS = 20


def engine(shape: str, modes: list[tuple[str, int]], arguments: argparse.Namespace) -> None:
    """Whole rounds of this engine: pairs of a mode and its candidates a depth."""
    device = torch.device("cuda")
    target, drafter = random_models(shape_folder(shape), device=device, dtype=torch.bfloat16)
    bench = Bench(target, drafter, rows=1, max_length=arguments.prefix)
    for mode, topk in modes:
        with alone(arguments.lock):
            found = bench.run(parse_mode(mode, topk), arguments.prefix, runs=RUNS, stages=False)
        report(f"engine {shape} {mode} topk {topk}", found.round.runs, floor=found.floor.median)


def transformers_peer(arguments: argparse.Namespace, *, compiled: bool) -> None:
    """Transformers' model of the 27B shape, a token at a time."""
    begin = perf_counter()
    decoding = transformers_model.Decoding(
        shape_folder(HYBRID) / "target", arguments.prefix, room=4 * RUNS, compiled=compiled
    )
    loaded = perf_counter() - begin
    begin = perf_counter()
    decoding.step()
    warm = perf_counter() - begin
    with alone(arguments.lock):
        decoding.warm_up()
        runs = [timed(decoding.step) for _ in range(3 + RUNS)][3:]
    name = "compiled" if compiled else "eager"
    report(
        f"transformers {HYBRID} ar {name}",
        runs,
        loaded=loaded,
        first=warm,
        graphs=decoding.graphs,
    )


def reference_peer(arguments: argparse.Namespace) -> None:
    """The published rounds on the dense shape."""
    rounds = ddtree_reference.Rounds(arguments.ddtree_reference, shape_folder(DENSE))
    for budget in (16, 64):
        with alone(arguments.lock):
            runs, stages, accepted = rounds.run(budget, arguments.prefix, rounds=3 + RUNS)
        report(f"reference {DENSE} tree:{budget}", runs[3:], stages=stages, accepted=accepted)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "compiled": lambda arguments: transformers_peer(arguments, compiled=True),
    "eager": lambda arguments: transformers_peer(arguments, compiled=False),
    "reference": reference_peer,
    "dense": lambda arguments: engine(
        DENSE,
        [
            ("ar", 8),
            ("linear", 8),
            *((f"tree:{budget}", topk) for budget in (16, 64) for topk in (8, budget)),
        ],
        arguments,
    ),
    "hybrid": lambda arguments: engine(
        HYBRID, [(mode, 8) for mode in arguments.modes.split(",")], arguments
    ),
}


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds of one run, to the end of its work on the GPU."""
    torch.cuda.synchronize()
    begin = perf_counter()
    work()
    torch.cuda.synchronize()
    return (perf_counter() - begin) * 1e3


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other part measures."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def report(name: str, runs: list[float] | tuple[float, ...], **more: Any) -> None:
    """Print one line of JSON: times in ms."""
    line = {"name": name, "median": statistics.median(runs), "least": min(runs), "most": max(runs)}
    print(json.dumps({**line, "runs": len(runs), **more}), flush=True)


def main() -> None:
    """Run the parts, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--modes", default="ar,linear,tree:16,tree:63,tree:64")
    parser.add_argument("--ddtree-reference", type=Path, metavar="DIR", help="a checkout of it")
    parser.add_argument("--limit", type=int, default=150, help="seconds that one part may take")
    parser.add_argument("--together", action="store_true", help="compile while others measure")
    parser.add_argument("--part", choices=[*PARTS], help="this one alone, in this process")
    parser.add_argument("--lock", type=Path, default=Path(tempfile.gettempdir(), "bench-peers"))
    arguments = parser.parse_args()
    if arguments.part is not None:
        PARTS[arguments.part](arguments)
        return
    parts = [part for part in PARTS if part != "reference" or arguments.ddtree_reference]
    running: list[tuple[str, subprocess.Popen[bytes], float]] = []
    for part in parts:
        command = [sys.executable, "-m", "bench.peers", *sys.argv[1:], "--part", part]
        running.append((part, subprocess.Popen(command), perf_counter()))
        if not (part == "compiled" and arguments.together):
            finish(*running.pop(), arguments.limit)
    for one in running:
        finish(*one, arguments.limit)


def finish(part: str, process: subprocess.Popen[bytes], begin: float, limit: int) -> None:
    """Wait for a part, for `limit` seconds since its begin."""
    try:
        code = process.wait(max(1.0, limit - (perf_counter() - begin)))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(json.dumps({"name": part, "failed": f"not done after {limit} s"}), flush=True)
        return
    if code:
        print(json.dumps({"name": part, "failed": f"exit {code}, see above"}), flush=True)


if __name__ == "__main__":
    main()
