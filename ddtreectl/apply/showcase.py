"""What the demo shows of a service: a completion, and its modes side by side."""

import json
from dataclasses import dataclass

from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.facts.http import Request, base_url
from ddtreectl.facts.output import as_float, as_int, json_object, json_objects
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.service import ServiceSpec

PROMPTS_DEADLINE = 120.0
COMPLETION_TIMEOUT = 120.0
COMPARISON_DEADLINE = 1800.0
MODES = "ar,linear,tree:16,tree:64"


@dataclass(frozen=True)
class Completion:
    """A prompt that the model was never trained on, and what the service made of it.

    Attributes:
        name: where the prompt is from.
        prompt: the prompt.
        text: the completion.
        tokens: how many tokens it has.
        acceptance_length: tokens a round (τ).
        tokens_per_second: decoding speed of this one request.
    """

    name: str
    prompt: str
    text: str
    tokens: int | None
    acceptance_length: float | None
    tokens_per_second: float | None


@dataclass(frozen=True)
class ModeFigures:
    """One mode, measured.

    Attributes:
        mode: `ar`, `linear`, `tree:16` …
        acceptance_length: tokens a round (τ).
        tokens_per_second: median over the runs.
        speedup: over `ar`.
    """

    mode: str
    acceptance_length: float
    tokens_per_second: float
    speedup: float


@dataclass(frozen=True)
class Comparison:
    """All modes on the same prompts.

    Attributes:
        prompts: how many prompts.
        max_tokens: tokens for each.
        runs: measured runs that the figures are the median of.
        warm_ups: requests before them that are not measured.
        divergences: requests in which a mode gave other tokens than `ar`.
        modes: the figures.
    """

    prompts: int
    max_tokens: int
    runs: int
    warm_ups: int
    divergences: int
    modes: tuple[ModeFigures, ...]


def engine(session: Session, environment: str) -> str:
    """The engine's command in an environment."""
    return f"{session.layout.environment(environment)}/bin/ddtree-engine"


def complete(
    session: Session, environment: str, service: ServiceSpec, *, max_tokens: int
) -> Completion:
    """Let the running service complete the first of the engine's held-out prompts."""
    argv = [engine(session, environment), "check", "--list-prompts", "--json"]
    listed = check(session.host.run(argv, deadline=PROMPTS_DEADLINE), "the engine lists no prompts")
    prompts = json_objects(listed.stdout)
    if not prompts:
        raise StepError("the engine lists no prompts", cause=listed.said[:500])
    name, prompt = str(prompts[0].get("name")), str(prompts[0].get("prompt"))
    base = base_url(service.address, service.port)
    body: dict[str, object] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    asked = Request(f"{base}/v1/completions", COMPLETION_TIMEOUT, body, key_file=service.api_key)
    answer = session.ask([asked], COMPLETION_TIMEOUT + 10.0)[0]
    if not answer.ok:
        raise StepError("the service does not complete the prompt", cause=str(answer))
    return _completion(name, prompt, answer.content)


def _completion(name: str, prompt: str, content: dict[str, object]) -> Completion:
    choices, usage, extra = (content.get(key) for key in ("choices", "usage", "ddtree"))
    first = choices[0] if isinstance(choices, list) and choices else {}
    extra = extra if isinstance(extra, dict) else {}
    tokens = as_int(usage.get("completion_tokens")) if isinstance(usage, dict) else None
    seconds = as_float(extra.get("decode_seconds"))
    return Completion(
        name=name,
        prompt=prompt,
        text=str(first.get("text") or ""),
        tokens=tokens,
        acceptance_length=as_float(extra.get("acceptance_length")),
        tokens_per_second=tokens / seconds if tokens and seconds else None,
    )


def compare(
    session: Session,
    environment: str,
    service: ServiceSpec,
    *,
    prompts: int,
    max_tokens: int,
    runs: int,
) -> Comparison:
    """Measure the modes with the engine of an environment, on held-out prompts, greedily."""
    argv = [
        *(engine(session, environment), "check", "--json"),
        *("--model", service.model, "--drafter", service.drafter),
        *("--modes", MODES, "--topk", str(service.topk)),
        *("--limit", str(prompts), "--max-tokens", str(max_tokens)),
        *("--temperatures", "0", "--runs", str(runs)),
    ]
    result = session.host.run(argv, deadline=COMPARISON_DEADLINE)
    document = json_object(result.stdout)
    rows = document.get("results")
    if not isinstance(rows, list) or not rows:
        raise StepError("the engine cannot compare its modes", cause=result.said[-2000:])
    if not result.ok:
        raise StepError(
            "a mode gives other tokens than `ar`",
            cause=json.dumps(document.get("divergences"))[:2000],
        )
    speeds = {row["mode"]: float(row["tokens_per_second"]) for row in rows}
    plain = speeds.get("ar") or 1.0
    divergences = document.get("divergences")
    return Comparison(
        prompts=as_int(document.get("prompts")) or prompts,
        max_tokens=max_tokens,
        runs=as_int(document.get("runs")) or runs,
        warm_ups=as_int(document.get("warmup_requests_per_mode")) or 0,
        divergences=len(divergences) if isinstance(divergences, list) else 0,
        modes=tuple(
            ModeFigures(
                mode=str(row["mode"]),
                acceptance_length=float(row["acceptance_length"]),
                tokens_per_second=float(row["tokens_per_second"]),
                speedup=float(row["tokens_per_second"]) / plain,
            )
            for row in rows
        ),
    )
