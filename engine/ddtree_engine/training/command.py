"""`ddtree-engine train PART`: each part reads and writes the folder of one run."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ddtree_engine.errors import EngineError
from ddtree_engine.target.model import TargetModel
from ddtree_engine.training.accelerate import choose_device
from ddtree_engine.training.arguments import PARTS, add_arguments, check_ranges
from ddtree_engine.training.checkpoint import STATE
from ddtree_engine.training.configs import SHAPES, drafter_config, target_config, write_config
from ddtree_engine.training.drafter import HeldOutText, train_drafter
from ddtree_engine.training.export import export
from ddtree_engine.training.generate import MIX, continue_prompts, generate_corpus
from ddtree_engine.training.loop import Schedule
from ddtree_engine.training.run_folder import RunFolder, load_tokens, write_corpus
from ddtree_engine.training.target import load_trained_target, train_target
from ddtree_engine.training.tokenizer import END_OF_TEXT, IM_END, MASK, load_tokenizer, token_id

_LOG = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Runs the part that ``args`` names; returns the exit code.

    Raises:
        EngineError: a number is out of its range, or what the part needs is missing, damaged or
            not finite.
    """
    check_ranges(args)
    folder = RunFolder(args.out)
    actions: dict[str, Callable[[argparse.Namespace, RunFolder], None]] = {
        "corpus": _corpus,
        "target": _target,
        "generate": _generate,
        "drafter": _drafter,
        "export": _export,
    }
    for part in PARTS if args.part == "all" else (args.part,):
        started = time.monotonic()
        actions[part](args, folder)
        _LOG.info("%s: %.0f s", part, time.monotonic() - started)
    return 0


def _corpus(args: argparse.Namespace, folder: RunFolder) -> None:
    del args
    facts = write_corpus(folder)
    for name in ("train", "held_out"):
        _LOG.info("%s: %s", name, facts[name])


def _target(args: argparse.Namespace, folder: RunFolder) -> None:
    corpus = folder.facts(folder.corpus)
    device = choose_device(args.device)
    _write_configs(args, folder)
    train_target(
        folder.target,
        folder.stream("train", device),
        folder.stream("held_out", device),
        _schedule(args),
        batch=args.batch,
        length=args.length,
        dropout=args.dropout,
        compiled=_compiled(args, device),
        about={"corpus_sha256": corpus["sha256"]},
        resume=_resumes(args, folder.target),
    )


def _generate(args: argparse.Namespace, folder: RunFolder) -> None:
    _write_configs(args, folder)
    device = choose_device(args.device)
    target = load_trained_target(folder.target, device)
    if device.type == "cuda":
        target.to(torch.bfloat16)
    started = time.monotonic()
    length = args.row_length
    prompt_lengths = [length // 4, length // 2, length // 8, length * 3 // 8]
    stream = folder.stream("train", device)
    rows = generate_corpus(
        target,
        stream,
        rows=args.rows,
        batch=args.rows_at_once,
        length=length,
        prompt_lengths=prompt_lengths,
        seed=args.seed,
    )
    held_out = held_out_continuations(target, folder.stream("held_out", device), args.seed)
    folder.generated.mkdir(parents=True, exist_ok=True)
    _save_tokens(folder.generated / "train.npy", rows)
    _save_tokens(folder.generated / "held_out.npy", held_out.tokens)
    facts = {
        "rows": rows.shape[0],
        "length": length,
        "prompt_lengths": prompt_lengths,
        "mix": [asdict(entry) for entry in MIX],
        "held_out_rows": held_out.tokens.shape[0],
        "held_out_prompt_length": held_out.prompt_length,
        "seed": args.seed,
        "seconds": time.monotonic() - started,
    }
    path = folder.generated / "facts.json"
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _drafter(args: argparse.Namespace, folder: RunFolder) -> None:
    _write_configs(args, folder)
    generated = folder.facts(folder.generated)
    device = choose_device(args.device)
    train_drafter(
        folder.drafter,
        load_trained_target(folder.target, device),
        load_tokens(folder.generated / "train.npy", device),
        HeldOutText(
            load_tokens(folder.generated / "held_out.npy", device).long(),
            generated["held_out_prompt_length"],
        ),
        _schedule(args),
        batch=args.drafter_batch,
        anchors=args.anchors,
        compiled=_compiled(args, device),
        about={"generated": generated},
        resume=_resumes(args, folder.drafter),
    )


def _export(args: argparse.Namespace, folder: RunFolder) -> None:
    _write_configs(args, folder)
    export(folder, args.to if args.to is not None else folder.root / "export")


def held_out_continuations(
    target: TargetModel,
    stream: Tensor,
    seed: int,
    *,
    rows: int = 64,
    prompt: int = 192,
    new: int = 128,
) -> HeldOutText:
    """Greedy continuations of prompts at random places of the held-out modules."""
    generator = torch.Generator().manual_seed(seed + 17)
    starts = torch.randint(stream.numel() - prompt, (rows, 1), generator=generator)
    prompts = stream[(starts + torch.arange(prompt)).to(stream.device)].long()
    return HeldOutText(continue_prompts(target, prompts, new), prompt)


def _schedule(args: argparse.Namespace) -> Schedule:
    return Schedule(
        steps=args.steps,
        seconds=args.seconds,
        time_limit=args.time_limit,
        peak=args.learning_rate,
        warmup=args.warmup,
        evaluate_every=args.evaluate_every,
        seed=args.seed,
    )


def _resumes(args: argparse.Namespace, part: Path) -> bool:
    """`train all --resume` begins the parts that have no state yet."""
    return args.resume and (args.part != "all" or (part / STATE).is_file())


def _compiled(args: argparse.Namespace, device: torch.device) -> bool:
    return device.type == "cuda" if args.compile is None else bool(args.compile)


def _write_configs(args: argparse.Namespace, folder: RunFolder) -> None:
    """Both `config.json`, so that best.safetensors alone can be brought from another machine."""
    vocab_size = folder.facts(folder.corpus)["vocab_size"]
    shape, tokenizer = SHAPES[args.shape], load_tokenizer(folder.tokenizer)
    eos = (token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, IM_END))
    mask = token_id(tokenizer, MASK)
    write_config(folder.target, target_config(shape, vocab_size, eos))
    write_config(folder.drafter, drafter_config(shape, vocab_size, eos, mask))


def _save_tokens(path: Path, tokens: Tensor) -> None:
    np.save(path, tokens.cpu().numpy().astype(np.uint16))


def main(argv: list[str] | None = None) -> int:
    """Entry of `python -m ddtree_engine.training`."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m ddtree_engine.training", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except EngineError as error:
        _LOG.error("%s", error.render().removeprefix("error: "))
        return 1
