"""`ddtree-engine check`: do all modes emit the same tokens, and how fast is each?"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddtree_engine.cli.model_arguments import (
    add_model_arguments,
    add_rounds_argument,
    budget,
    load_from,
)
from ddtree_engine.errors import EngineError
from ddtree_engine.readable import reading_hint

if TYPE_CHECKING:
    from ddtree_engine.comparison import Divergence, ModeResult

SUMMARY = "Compare ar, linear, shadow and tree on the same prompts: tokens, acceptance, speed."

DEFAULT_MODES = "ar,linear,shadow,tree:16,tree:64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `check`."""
    add_model_arguments(parser)
    add_rounds_argument(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON lines, each {"name": …, "prompt": …}; by default the bundled held-out prompts',
    )
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N prompts only")
    parser.add_argument("--list-prompts", action="store_true", help="print the prompts and stop")
    parser.add_argument("--max-tokens", type=int, default=128, help="for each prompt (default 128)")
    parser.add_argument(
        "--temperatures", default="0,0.8", help="comma-separated; 0 is greedy (default 0,0.8)"
    )
    parser.add_argument("--modes", default=DEFAULT_MODES, help=f"default {DEFAULT_MODES}")
    parser.add_argument(
        "--budget",
        type=budget,
        default=16,
        metavar="N|auto",
        help="nodes of a `tree` that names no budget of its own (default 16); auto chooses by what "
        "rounds cost here and what is accepted",
    )
    parser.add_argument("--topk", type=int, default=8, help="candidates a depth (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1, help="measured passes (default 1)")
    parser.add_argument(
        "--max-gap",
        type=float,
        help="largest logit gap of a divergence that passes for rounding "
        "(default 0.001 in float32, 0.125 in bfloat16)",
    )
    parser.add_argument(
        "--against",
        metavar="DEVICE",
        help="hold all modes against `ar` on this device, for instance cpu, with rounds led by the "
        "host; by default against `ar` of the same run",
    )
    parser.add_argument(
        "--recurrent-state",
        default="exact",
        choices=["exact", "leak"],
        help="`leak` lets siblings see each other's recurrent state, to measure what it costs; "
        "divergences then are the result and no failure",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and return 1 for a divergence that rounding does not explain."""
    prompts = _prompts(arguments)
    if arguments.list_prompts:
        for entry in prompts:
            print(json.dumps(entry) if arguments.json else f"{entry['name']}")
        return 0
    from ddtree_engine.budget_tuner import CANDIDATES, BudgetTuner
    from ddtree_engine.comparison import (
        MAX_GAP,
        Divergence,
        compare,
        label,
        parse_mode,
    )
    from ddtree_engine.engine import choose_device_rounds
    from ddtree_engine.round_costs import MEASURED_LENGTH, measure_costs
    from ddtree_engine.sequence import Mode, Speculation

    modes = [
        parse_mode(text.strip(), arguments.topk, arguments.budget)
        for text in arguments.modes.split(",")
    ]
    ar = Speculation(Mode.AR, topk=arguments.topk)
    modes = [ar, *(mode for mode in modes if mode.mode is not Mode.AR)]
    temperatures = _numbers(arguments.temperatures, "--temperatures")
    for option, number in (("--runs", arguments.runs), ("--max-tokens", arguments.max_tokens)):
        if number < 1:
            raise EngineError(f"{option} must be 1 or more, got {number}")
    if arguments.max_gap is not None and not arguments.max_gap >= 0:  # NaN is no bound
        raise EngineError(f"--max-gap must be 0 or more, got {arguments.max_gap}")
    engine = load_from(arguments)
    if engine.drafter is None and len(modes) > 1:
        raise EngineError(
            "there is no drafter to compare with", hint="pass --drafter, or --modes ar"
        )
    encoded = [engine.tokenizer.encode(entry["prompt"]) for entry in prompts]
    for entry, ids in zip(prompts, encoded, strict=True):
        if not ids:
            raise EngineError(f"prompt `{entry['name']}` is empty", hint="give it some text")
    longest = max(map(len, encoded)) + arguments.max_tokens
    reference = None
    if arguments.against is not None:
        reference = load_from(arguments, arguments.against, engine.dtype).decoder(
            max_length=longest
        )
    tuned = any(mode.auto for mode in modes)
    decoder = engine.decoder(
        max_length=max(longest, min(MEASURED_LENGTH, engine.max_context)) if tuned else longest,
        recurrent_state=arguments.recurrent_state,
        device_rounds=choose_device_rounds(arguments.rounds, engine.device),
    )
    if tuned:
        decoder.tuner = BudgetTuner(measure_costs(decoder, CANDIDATES, topk=arguments.topk))
    max_gap = MAX_GAP[engine.dtype] if arguments.max_gap is None else arguments.max_gap
    results: list[ModeResult] = []
    divergences: list[Divergence] = []
    led_by = "host" if decoder.pipeline is None else "device"
    if not arguments.json:
        against = "" if reference is None else f", held against {reference.device}"
        print(
            f"{len(prompts)} prompts x {arguments.max_tokens} tokens, top-k {arguments.topk}, "
            f"seed {arguments.seed}, {engine.backend} {engine.dtype}, batch 1, rounds led by the "
            f"{led_by}{against}; tok/s is decoding alone, median of {arguments.runs} measured "
            "run(s) after 1 warm-up request a mode"
        )
    for found in compare(
        decoder,
        encoded,
        modes,
        max_tokens=arguments.max_tokens,
        temperatures=temperatures,
        seed=arguments.seed,
        stop_ids=engine.tokenizer.eos_ids,
        runs=arguments.runs,
        reference=reference,
    ):
        if isinstance(found, Divergence):
            divergences.append(found)
            if not arguments.json:
                print(_describe(found, prompts[found.prompt]["name"]), file=sys.stderr)
            continue
        results.append(found)
        if not arguments.json:
            _print_result(found, label(found.speculation), results)
    # A gap that is not a number passes for nothing.
    failures = [one for one in divergences if not one.gap <= max_gap]
    if arguments.json:
        print(json.dumps(_document(arguments, results, divergences, max_gap, len(prompts), led_by)))
    elif arguments.recurrent_state == "leak":
        judged = len(results) - (len(temperatures) if reference is None else 0)
        compared = len(prompts) * judged
        print(f"leak: {len(divergences)} of {compared} requests left what ar emits")
    else:
        print(f"{len(divergences)} divergences, {len(failures)} of them over a gap of {max_gap:g}")
    return 1 if failures and arguments.recurrent_state == "exact" else 0


def _print_result(result: ModeResult, name: str, results: list[ModeResult]) -> None:
    if len(results) == 1 or results[-2].temperature != result.temperature:
        print(f"\ntemperature {result.temperature:g}")
        print(f"  {'mode':<10} {'tokens':>7} {'rounds':>7} {'τ':>6} {'tok/s':>8} {'x ar':>6}")
    first = next(one for one in results if one.temperature == result.temperature)
    speed = result.median_tokens_per_second
    print(
        f"  {name:<10} {result.tokens:>7} {result.rounds:>7} {result.acceptance_length:>6.2f} "
        f"{speed:>8.1f} {speed / first.median_tokens_per_second:>6.2f}",
        flush=True,
    )
    if result.shadow is not None:
        from ddtree_engine.shadow import SHAPES

        means = {shape: result.shadow.mean(shape) for shape in SHAPES}
        shown = ", ".join(f"{s} {m:.2f}" for s, m in means.items() if m is not None)
        print(
            f"    shadow evidence over {result.shadow.rounds} rounds "
            f"({result.shadow.censored} censored): {shown}"
        )


def _describe(one: Divergence, prompt: str) -> str:
    return (
        f"  divergence: {one.mode} at temperature {one.temperature:g}, prompt {prompt}, token "
        f"{one.position}: gap under ar {one.gap:.3g}"
    )


def _document(
    arguments: argparse.Namespace,
    results: list[ModeResult],
    divergences: list[Divergence],
    max_gap: float,
    prompts: int,
    led_by: str,
) -> dict[str, Any]:
    from ddtree_engine.comparison import label
    from ddtree_engine.shadow import SHAPES

    return {
        "prompts": prompts,
        "max_tokens": arguments.max_tokens,
        "topk": arguments.topk,
        "seed": arguments.seed,
        "runs": arguments.runs,
        "warmup_requests_per_mode": 1,
        "recurrent_state": arguments.recurrent_state,
        "rounds": led_by,
        "against": arguments.against,
        "max_gap": max_gap,
        "results": [
            {
                "mode": label(result.speculation),
                "temperature": result.temperature,
                "tokens": result.tokens,
                "rounds": result.rounds,
                "acceptance_length": result.acceptance_length,
                "tokens_per_second": result.median_tokens_per_second,
                "tokens_per_second_runs": result.tokens_per_second,
                "stage_seconds": result.stage_seconds,
                "shadow": None
                if result.shadow is None
                else {
                    "rounds": result.shadow.rounds,
                    "censored": result.shadow.censored,
                    "acceptance_length": {s: result.shadow.mean(s) for s in SHAPES},
                },
            }
            for result in results
        ],
        "divergences": [
            {
                "mode": one.mode,
                "temperature": one.temperature,
                "prompt": one.prompt,
                "position": one.position,
                # JSON has no infinity: null is a divergence that no rounding explains.
                "gap": one.gap if math.isfinite(one.gap) else None,
            }
            for one in divergences
        ],
    }


def _prompts(arguments: argparse.Namespace) -> list[dict[str, str]]:
    from ddtree_engine.engine import DEMO

    if arguments.limit is not None and arguments.limit < 1:
        raise EngineError(f"--limit must be 1 or more, got {arguments.limit}")
    path = arguments.prompts or DEMO / "prompts.jsonl"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(
            f"the prompts in `{path}` can't be read",
            hint=reading_hint(path, error, "a file in UTF-8 with a JSON object a line"),
        ) from error
    # Not splitlines(): a JSON string may hold other line separators of Unicode as they are.
    lines = enumerate(text.split("\n"), start=1)
    entries = [_entry(line, f"line {number}", path) for number, line in lines if line.strip()]
    if not entries:
        raise EngineError(f"`{path}` has no prompts")
    return entries[: arguments.limit]


def _entry(line: str, name: str, path: Path) -> dict[str, str]:
    """One prompt; `name` says which line of `path` it is, and is its name if it has none."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{name} of `{path}` is not JSON") from error
    if isinstance(entry, dict):
        entry = {"name": name, **entry}
        if isinstance(entry["name"], str) and isinstance(entry.get("prompt"), str):
            return entry
    raise EngineError(
        f"{name} of `{path}` is not a prompt",
        hint='each line is a JSON object: {"name": "…", "prompt": "…"}',
    )


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise EngineError(f"{option} takes numbers separated by commas, got `{text}`") from error
