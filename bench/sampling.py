"""Times the choice of tokens over a large vocabulary: `python -m bench.sampling`.

The kernel beside the form that sorts every row, each in a CUDA graph, for the rows of a tree. The
logits are normal with a deviation of 3, about what a language model's are, and bfloat16.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from ddtree_engine.bench.timing import graphed, measure
from ddtree_engine.ops.choose_nodes import kernel, vectorized
from ddtree_engine.sampling import SamplingParams, SamplingTensors

DEPTH = 15
SAMPLING = (
    SamplingParams(1.0, seed=1),
    SamplingParams(1.0, top_k=20, seed=1),
    SamplingParams(1.0, top_p=0.95, seed=1),
    SamplingParams(1.0, top_k=20, top_p=0.95, seed=1),
)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 17, 64, 65])
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device to measure on")
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.vocab} tokens, ms"
    )
    print(f"{'nodes':>5} {'top-k':>5} {'top-p':>5} {'kernel':>8} {'sort':>8}  alike")
    for nodes in arguments.nodes:
        shape = (1, nodes, arguments.vocab)
        logits = (3 * torch.randn(shape, generator=generator, device=device)).bfloat16()
        depths = torch.arange(nodes, device=device)[None] % (DEPTH + 1)
        for params in SAMPLING:
            given: dict[str, Any] = {
                "logits": logits,
                "depths": depths,
                "starts": torch.tensor([1024], device=device),
                "params": SamplingTensors.of([params], device),
                "depth": min(nodes - 1, DEPTH),
                "filters": bool(params.top_k or params.top_p < 1.0),
            }
            forms = [partial(form.choose_nodes, **given) for form in (kernel, vectorized)]
            alike = torch.equal(*(form() for form in forms))
            taken = [
                measure(graphed(form, device), device, runs=arguments.runs).median for form in forms
            ]
            print(
                f"{nodes:>5} {params.top_k:>5} {params.top_p:>5} {taken[0]:>8.3f} {taken[1]:>8.3f}"
                f"  {alike}",
                flush=True,
            )


if __name__ == "__main__":
    main()
