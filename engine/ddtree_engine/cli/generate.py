"""`ddtree-engine generate`: one completion on the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ddtree_engine.cli.model_arguments import (
    add_model_arguments,
    add_rounds_argument,
    budget,
    load_from,
)
from ddtree_engine.errors import EngineError, NotFiniteError
from ddtree_engine.readable import reading_hint

SUMMARY = "Complete one prompt and print the text as it comes."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `generate`."""
    add_model_arguments(parser)
    add_rounds_argument(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", help="the prompt; without it, standard input")
    source.add_argument(
        "--prompt-file", type=Path, metavar="FILE", help="read the prompt from FILE"
    )
    parser.add_argument("--mode", default="tree", help="ar, linear, shadow, tree, or tree:BUDGET")
    parser.add_argument(
        "--budget",
        type=budget,
        default=16,
        metavar="N|auto",
        help="nodes of a `tree` that names no budget of its own (default 16); auto chooses by what "
        "rounds cost here and what is accepted",
    )
    parser.add_argument("--topk", type=int, default=8, help="candidates a depth (default 8)")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0, help="0 keeps all tokens (default)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")


def run(arguments: argparse.Namespace) -> int:
    """Generate and print; statistics go to stderr."""
    from time import perf_counter

    from ddtree_engine.budget_tuner import CANDIDATES, BudgetTuner
    from ddtree_engine.comparison import parse_mode
    from ddtree_engine.engine import choose_device_rounds
    from ddtree_engine.round_costs import MEASURED_LENGTH, measure_costs
    from ddtree_engine.sampling import SamplingParams
    from ddtree_engine.sequence import Sequence
    from ddtree_engine.text_stream import TextStream

    speculation = parse_mode(arguments.mode, arguments.topk, arguments.budget)
    params = SamplingParams(
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
    )
    if arguments.max_tokens < 1:
        raise EngineError(f"--max-tokens must be 1 or more, got {arguments.max_tokens}")
    prompt = _prompt(arguments)
    engine = load_from(arguments)
    tokenizer = engine.tokenizer
    sequence = Sequence(
        tokenizer.encode(prompt), arguments.max_tokens, params, speculation, tokenizer.eos_ids
    )
    length = len(sequence.prompt) + arguments.max_tokens
    decoder = engine.decoder(
        max_length=max(length, min(MEASURED_LENGTH, engine.max_context))
        if speculation.auto
        else length,
        device_rounds=choose_device_rounds(arguments.rounds, engine.device),
    )
    if speculation.auto and engine.drafter is not None:
        decoder.tuner = BudgetTuner(measure_costs(decoder, CANDIDATES, topk=arguments.topk))
    decoder.start(sequence)
    while not sequence.decoding:
        decoder.prefill(sequence)
    begin = perf_counter()
    text = TextStream(tokenizer.decode)
    while sequence.finish_reason is None:
        for _, tokens in decoder.round():
            piece = text.feed(tokens)
            if not arguments.json:
                print(piece, end="", flush=True)
    if sequence.finish_reason == "failed":
        raise NotFiniteError
    seconds = perf_counter() - begin
    speed = len(sequence.emitted) / seconds
    if arguments.json:
        document = {
            "text": tokenizer.decode(sequence.emitted),
            "tokens": list(sequence.emitted),
            "finish_reason": sequence.finish_reason,
            "mode": arguments.mode,
            "rounds": sequence.rounds,
            "acceptance_length": sequence.acceptance_length,
            "decode_seconds": seconds,
            "budget_in_use": None if decoder.tuner is None else decoder.tuner.in_use,
        }
        print(json.dumps(document))
        return 0
    print(text.finish())
    chosen = "" if decoder.tuner is None else f", budget {decoder.tuner.in_use} at the end"
    print(
        f"{len(sequence.emitted)} tokens in {sequence.rounds} rounds: acceptance length "
        f"{sequence.acceptance_length:.2f}, {speed:.1f} tok/s (one run, not warmed up){chosen}",
        file=sys.stderr,
    )
    return 0


def _prompt(arguments: argparse.Namespace) -> str:
    if arguments.prompt is not None:
        return str(arguments.prompt)
    if arguments.prompt_file is not None:
        try:
            return str(arguments.prompt_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise EngineError(
                f"`{arguments.prompt_file}` can't be read",
                hint=reading_hint(arguments.prompt_file, error, "a text file in UTF-8"),
            ) from error
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise EngineError("standard input is not text", hint="give it as UTF-8") from error
