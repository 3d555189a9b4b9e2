"""Figures of a service, from the Prometheus text of its `/metrics`.

`ddtree-engine` counts tokens and rounds by mode; SGLang has gauges of its own (names of 0.5.23,
`sglang:spec_accept_length` and `sglang:gen_throughput`). Both count since the start.
"""

import re
from dataclasses import dataclass

from ddtreectl.facts.output import as_float

TOKENS, ROUNDS = "ddtree_tokens_total", "ddtree_rounds_total"
RUNNING, QUEUED = "ddtree_running", "ddtree_queue_length"
GENERATED = "sglang:generation_tokens_total"
ACCEPTED, THROUGHPUT = "sglang:spec_accept_length", "sglang:gen_throughput"
SGLANG_RUNNING, SGLANG_QUEUED = "sglang:num_running_reqs", "sglang:num_queue_reqs"

NAMES: tuple[str, ...] = (
    *(TOKENS, ROUNDS, RUNNING, QUEUED),
    *(GENERATED, ACCEPTED, THROUGHPUT, SGLANG_RUNNING, SGLANG_QUEUED),
)
"""The beginnings of the lines that are read."""

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?")
_MODE = re.compile(r'[{,]\s*mode="([^"]*)"')


@dataclass(frozen=True)
class Metrics:
    """What a service has done since its start; None where it does not tell.

    Attributes:
        acceptance_length: tokens a round (τ) in the mode that is served.
        tokens: emitted tokens, of all requests.
        tokens_per_second: as the service itself states it; SGLang does, of late.
        running: requests that are being decoded.
        queued: requests that wait.
    """

    acceptance_length: float | None = None
    tokens: float | None = None
    tokens_per_second: float | None = None
    running: int | None = None
    queued: int | None = None


def parse(text: str, mode: str | None) -> Metrics:
    """The figures in the text; `mode` chooses the samples that are by mode."""
    values: dict[str, list[float]] = {}
    of_mode: dict[str, float] = {}
    for line in text.split("\n"):
        match = _SAMPLE.fullmatch(line.strip())
        if match is None or (value := _number(match[3])) is None:
            continue
        name, labels = match[1], match[2] or ""
        values.setdefault(name, []).append(value)
        found = _MODE.search(labels)
        if found is not None and found[1] == mode:
            of_mode[name] = of_mode.get(name, 0.0) + value
    sums = {name: sum(each) for name, each in values.items()}
    rounds, told = of_mode.get(ROUNDS), values.get(ACCEPTED, [])
    mean = sum(told) / len(told) if told else None  # one sample for each rank
    tau = of_mode.get(TOKENS, 0.0) / rounds if rounds else mean or None
    return Metrics(
        acceptance_length=tau,
        tokens=sums.get(TOKENS, sums.get(GENERATED)),
        tokens_per_second=sums.get(THROUGHPUT),
        running=_count(sums, RUNNING, SGLANG_RUNNING),
        queued=_count(sums, QUEUED, SGLANG_QUEUED),
    )


def _count(sums: dict[str, float], *names: str) -> int | None:
    return next((int(sums[name]) for name in names if name in sums), None)


def _number(text: str) -> float | None:
    try:
        return as_float(float(text))
    except ValueError:
        return None
