"""What a service tells of itself, whichever server program it is.

`ddtree-engine` has /health, /ready, /server_info and /metrics. SGLang 0.5.23 has these paths with
other contents; 0.5.16 has no /ready, and its /health answers 503 until it is warm. (Read in the
published packages of these versions.)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtreectl.facts import metrics
from ddtreectl.facts.http import Answer
from ddtreectl.facts.output import as_float, as_int

NOT_FOUND = 404
MODES = {"DFLASH": "linear"}
"""The mode that an algorithm of SGLang is. DDTREE is shadow or tree, and does not say which."""


@dataclass(frozen=True)
class Told:
    """What the answers of a service mean; None where it does not tell.

    Attributes:
        ready: whether it takes requests.
        alive: whether it answers at all as a live service does.
        status: its own word for its state, such as `draining`.
        version: of the server program.
        mode: `linear`, `shadow` or `tree`.
        budget: nodes of the tree besides the root; those in use, where the engine chooses.
        topk: candidates for each depth.
        max_running: requests that it decodes at the same time; SGLang lowers this to what fits.
        acceptance_length: tokens a round (τ) since the start.
        tokens_per_second: decoding speed, since the start; SGLang states the latest.
        tokens: emitted since the start.
        running: requests that are being decoded.
        queued: requests that wait.
    """

    ready: bool
    alive: bool
    status: str | None = None
    version: str | None = None
    mode: str | None = None
    budget: int | None = None
    topk: int | None = None
    max_running: int | None = None
    acceptance_length: float | None = None
    tokens_per_second: float | None = None
    tokens: float | None = None
    running: int | None = None
    queued: int | None = None


def read(answers: Mapping[str, Answer], backend: str, mode: str | None) -> Told:
    """What the answers by path mean for a service of a backend that was deployed in `mode`."""
    none = Answer("", None, error="not asked")
    health, ready, info, text = (
        answers.get(path, none) for path in ("/health", "/ready", "/server_info", "/metrics")
    )
    told = _sglang(info.content) if backend == "sglang" else _engine(info.content)
    figures = metrics.parse(text.body if text.ok else "", told.mode or mode)
    status = ready.content.get("status")
    return Told(
        ready=is_ready(ready, health),
        alive=health.ok,
        status=status if isinstance(status, str) else None,
        version=told.version,
        mode=told.mode,
        budget=told.budget,
        topk=told.topk,
        max_running=told.max_running,
        acceptance_length=figures.acceptance_length or told.acceptance_length,
        tokens_per_second=told.tokens_per_second or figures.tokens_per_second or None,
        tokens=figures.tokens,
        running=figures.running,
        queued=figures.queued,
    )


def is_ready(ready: Answer, health: Answer) -> bool:
    """Whether a service takes requests, by what its version has."""
    return health.ok if ready.status == NOT_FOUND else ready.ok


def _engine(info: Mapping[str, object]) -> Told:
    totals = info.get("totals")
    totals = totals if isinstance(totals, dict) else {}
    return Told(
        ready=False,
        alive=False,
        version=_text(info, "version"),
        mode=_text(info, "mode"),
        budget=as_int(info.get("budget_in_use", info.get("budget"))),
        topk=as_int(info.get("topk")),
        max_running=as_int(info.get("max_running")),
        acceptance_length=as_float(totals.get("acceptance_length")),
        tokens_per_second=as_float(totals.get("decode_tokens_per_second")),
    )


def _sglang(info: Mapping[str, object]) -> Told:
    """The arguments as the server has resolved them, and the state of its schedulers."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else {}
    state = state if isinstance(state, dict) else {}
    nodes = as_int(info.get("speculative_num_draft_tokens"))
    effective = as_int(state.get("effective_max_running_requests_per_dp"))
    return Told(
        ready=False,
        alive=False,
        version=_text(info, "version"),
        mode=MODES.get(_text(info, "speculative_algorithm") or ""),
        budget=nodes - 1 if nodes else None,
        max_running=effective or as_int(info.get("max_running_requests")),
        acceptance_length=as_float(state.get("avg_spec_accept_length")),
        tokens_per_second=as_float(state.get("last_gen_throughput")),
    )


def _text(content: Mapping[str, object], key: str) -> str | None:
    value = content.get(key)
    return value if isinstance(value, str) else None
