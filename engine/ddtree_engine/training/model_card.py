"""The model card of the bundled demo, from the recorded facts of its training."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

CURVE_ROWS = 12
_NOT_CURVES = ("step", "learning_rate", "seconds", "replayed")

Facts = Mapping[str, Any]


def model_card(
    corpus: Facts, target: Facts, generated: Facts, drafter: Facts, *, prompts: int, size: int
) -> str:
    """Returns the card as Markdown; every figure in it is read from the arguments.

    Args:
        corpus: facts of the corpus.
        target: facts of the target's training.
        generated: facts of the text that the target wrote.
        drafter: facts of the drafter's training.
        prompts: how many there are in `prompts.jsonl`.
        size: bytes of both folders.
    """
    sections = [
        *_head(target, drafter, size),
        *_data(corpus, prompts),
        "## Target: training",
        _target_notes(target),
        *_training(target),
        "## Drafter: training",
        _drafter_notes(generated, drafter),
        *_training(drafter),
        *_acceptance(drafter, generated),
        "## Licence and limits",
        _paragraph(
            "The weights are under this repository's licence (Apache-2.0). The training text and "
            "the excerpts in `prompts.jsonl` are from the Python standard library, under the PSF "
            "License Version 2. What so small a model writes is often repetitive and then easy to "
            "draft: the acceptance lengths here say nothing about those of a large model. A line "
            "break and the indentation after it are one token, so a prompt that ends with a line "
            "break looks to the target like the end of a file, and it stops: end a prompt inside "
            "a line. Positions past 1,024 tokens were not trained."
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _head(target: Facts, drafter: Facts, size: int) -> list[str]:
    return [
        "# Demo models: a small hybrid and its DFlash drafter",
        _paragraph(
            "Two models that this repository trained from scratch, so that draft-tree decoding "
            "can be tried and tested without a download. They complete Python source a little; "
            "they are no assistant."
        ),
        (
            f"- `target/`: Qwen3.5 architecture (gated delta net and full attention), "
            f"{target['parameters'] / 1e6:.2f} million parameters.\n"
            f"- `drafter/`: its DFlash block-diffusion drafter, "
            f"{drafter['parameters'] / 1e6:.2f} million parameters.\n"
            f"- `prompts.jsonl`: prompts from modules that neither model saw."
        ),
        f"Both folders together are {size / 2**20:.1f} MiB; the weights are bf16 safetensors.",
    ]


def _data(corpus: Facts, prompts: int) -> list[str]:
    source = corpus["source"]
    modules = ", ".join(f"`{name}`" for name in corpus["held_out_modules"])
    return [
        "## Data",
        (
            f"{source[0].upper()}{source[1:]} (Python {corpus['python']}).\n"
            f"SHA-256 of the corpus: `{corpus['sha256']}`."
        ),
        _table(
            ["part", "files", "characters", "tokens"],
            [
                [
                    title,
                    *(f"{corpus[part][key]:,}" for key in ("documents", "characters", "tokens")),
                ]
                for title, part in (("training", "train"), ("held out", "held_out"))
            ],
        ),
        _paragraph(
            f"The tokenizer is byte-level BPE with {corpus['vocab_size']:,} tokens, trained on the "
            f"training part. Held-out modules, whose tests are in neither part: {modules}. "
            f"{prompts} of them gave a prompt."
        ),
        "Files left out:\n\n"
        + "\n".join(f"- {why}: {count}" for why, count in corpus["left_out"].items()),
    ]


def _target_notes(facts: Facts) -> str:
    epochs = facts["step"] / facts["epoch_steps"]
    return _paragraph(
        f"Next-token prediction, {facts['batch']} windows of {facts['length']} tokens a step, "
        f"{epochs:.1f} passes over the corpus, dropout {facts['dropout']}."
    )


def _drafter_notes(generated: Facts, facts: Facts) -> str:
    lengths = ", ".join(str(length) for length in sorted(generated["prompt_lengths"]))
    mix = "; ".join(f"{entry['share']:.0%} {_decoding(entry)}" for entry in generated["mix"])
    return _paragraph(
        f"Learns from {generated['rows']:,} sequences of {generated['length']} tokens that the "
        f"target wrote after prompts from the training part (prompts of {lengths} tokens; {mix}). "
        f"A step takes {facts['batch']} sequences and {facts['anchors']} random anchors in each."
    )


def _decoding(entry: Facts) -> str:
    if entry["temperature"] == 0:
        return "greedy"
    sampled = f"at temperature {entry['temperature']:g}"
    if entry["sampled"] is None:
        return sampled
    return f"{sampled} for {entry['sampled']} tokens, then greedy"


def _training(facts: Facts) -> list[str]:
    schedule, hardware, best = facts["schedule"], facts["hardware"], facts["best"]
    history: Sequence[Facts] = facts["history"]
    stride = max(1, -(-len(history) // CURVE_ROWS))
    rows = [entry for i, entry in enumerate(history) if (len(history) - 1 - i) % stride == 0]
    names = [name for name in rows[-1] if name not in _NOT_CURVES]
    taus = any(name.startswith("tau_") for name in names)
    runs = "one run" if facts["runs"] == 1 else f"{facts['runs']} runs, each resuming the last"
    return [
        (
            f"- {facts['step']:,} steps of {facts['tokens_per_step']:,} tokens"
            f"{'' if facts['finished'] else ' (stopped early)'}.\n"
            f"- AdamW (0.9, 0.95), weight decay {schedule['weight_decay']:g}, peak learning rate "
            f"{schedule['peak']:g}, warm-up {schedule['warmup']} steps,\n"
            f"  cosine over the last {schedule['decay_share']:.0%}, gradient norm clipped at 1, "
            f"seed {schedule['seed']}.\n"
            f"- {facts['seconds']:.0f} s in {runs} on {hardware['device']}, "
            f"torch {hardware['torch']}.\n"
            f"- Kept: the parameters of step {best['step']:,}, the best by held-out loss.\n"
            f"- Command: `python {facts['command']}`"
        ),
        _table(
            ["step", *(name.replace("_", " ") for name in names)],
            [[f"{entry['step']:,}", *(f"{entry[n]:.3f}" for n in names)] for entry in rows],
        ),
        _paragraph(
            "`loss` and what follows it are on held-out modules, losses in nats a token (the "
            "drafter's weighted over a block)."
            + (" Acceptance lengths before the last row are over fewer prompts." if taus else "")
        ),
    ]


def _acceptance(drafter: Facts, generated: Facts) -> list[str]:
    best = drafter["best"]
    modes = [name for name in best if name.startswith("tau_")]
    return [
        "## Acceptance length",
        _paragraph(
            f"Estimated at the end of the training from the target's greedy text after "
            f"{best['replayed']} prompts of held-out modules (random places, "
            f"{generated['held_out_prompt_length']} tokens), with 8 candidates a depth: mean "
            f"tokens a round. `ddtree-engine check` measures it with the engine itself."
        ),
        _table(
            ["mode", "tokens a round", "against linear"],
            [
                [
                    mode.removeprefix("tau_"),
                    f"{best[mode]:.2f}",
                    f"{best[mode] / best['tau_linear']:.2f}",
                ]
                for mode in modes
            ],
        ),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "| " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)
