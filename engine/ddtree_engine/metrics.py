"""What a server counts, in Prometheus' terms and as totals for people.

One `Metrics` a server, each with its own registry. Warm-up is never counted: nothing is observed
before the server is ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from ddtree_engine.budget_tuner import BudgetTuner
from ddtree_engine.shadow import ShadowSummary
from ddtree_engine.stages import Stage

ACCEPTANCE_BUCKETS = (*range(1, 17), 24, 32)
"""Upper bounds for tokens a round: one by one up to the usual block of 16."""

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


@dataclass(frozen=True, slots=True)
class Totals:
    """Measured work since the start.

    Requests that ask for another mode or budget than the server's are left out of `rounds`,
    `tokens` and `decode_seconds`: what remains is how the deployed mode does.

    Attributes:
        requests: that came to their end: a stop, or their length.
        rounds: verify passes, one for each request in each of them.
        tokens: emitted in these rounds.
        decode_seconds: wall time in rounds, whatever the number of requests in them.
        request_seconds: wall time of the counted requests from arrival to end.
    """

    requests: int = 0
    rounds: int = 0
    tokens: int = 0
    decode_seconds: float = 0.0
    request_seconds: float = 0.0

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a round; None before the first."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all requests per second of rounds; None before the first."""
        return self.tokens / self.decode_seconds if self.decode_seconds else None


class Metrics:
    """Counters of one server. Written by its threads, read by `/metrics` and `/server_info`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.totals = Totals()
        self._stage_seconds: dict[Stage, float] = {}
        registry = self.registry
        ProcessCollector(registry=registry)
        self.engine = Gauge(
            "ddtree_engine_info",
            "What runs; the value is always 1.",
            ["version", "mode", "budget", "topk", "recurrent_state", "backend", "model"],
            registry=registry,
        )
        self.http_requests = Counter(
            "ddtree_http_requests",
            "HTTP requests by route and status; 499 is a client that left.",
            ["path", "status"],
            registry=registry,
        )
        self.requests = Counter(
            "ddtree_requests",
            "Generation requests that left the scheduler, by what ended them.",
            ["mode", "outcome"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "ddtree_prompt_tokens", "Prompt tokens of started requests.", registry=registry
        )
        self.rounds = Counter(
            "ddtree_rounds",
            "Verify passes, one for each request in them.",
            ["mode"],
            registry=registry,
        )
        self.tokens = Counter("ddtree_tokens", "Tokens emitted.", ["mode"], registry=registry)
        self.acceptance_length = Histogram(
            "ddtree_acceptance_length",
            "Tokens that a request emitted in a round.",
            ["mode"],
            buckets=ACCEPTANCE_BUCKETS,
            registry=registry,
        )
        self.shadow_acceptance_length = Histogram(
            "ddtree_shadow_acceptance_length",
            "Tokens that each shape would have emitted in the rounds of shadow requests.",
            ["shape"],
            buckets=ACCEPTANCE_BUCKETS,
            registry=registry,
        )
        self.shadow_censored = Counter(
            "ddtree_shadow_censored_rounds",
            "Shadow rounds left out because their request ended before all shapes were decided.",
            registry=registry,
        )
        self.stage_seconds = Counter(
            "ddtree_stage_seconds",
            "Wall time of the decode loop by stage.",
            ["stage"],
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "ddtree_queue_seconds",
            "Time from arrival to a row.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.first_token_seconds = Histogram(
            "ddtree_time_to_first_token_seconds",
            "Time from arrival to the end of the first round.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.request_seconds = Histogram(
            "ddtree_request_seconds",
            "Time from arrival to the end.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.queue_length = Gauge(
            "ddtree_queue_length", "Requests that wait for a row.", registry=registry
        )
        self.budget = Gauge(
            "ddtree_budget_in_use", "Nodes besides the root, with --budget auto.", registry=registry
        )
        self.expected_speed = Gauge(
            "ddtree_expected_tokens_per_second",
            "Speed that --budget auto expects of each budget with as many requests as now.",
            ["budget"],
            registry=registry,
        )
        self.round_cost = Gauge(
            "ddtree_expected_round_seconds",
            "Cost of a round that --budget auto reckons with, by budget.",
            ["budget"],
            registry=registry,
        )
        self.running = Gauge("ddtree_running", "Requests that hold a row.", registry=registry)

    def observe_round(self, mode: str, tokens: int, *, as_served: bool = True) -> None:
        """Count one request's part in a round; in the totals only if it ran `as_served`."""
        self.rounds.labels(mode).inc()
        self.tokens.labels(mode).inc(tokens)
        self.acceptance_length.labels(mode).observe(tokens)
        if as_served:
            totals = self.totals
            self.totals = replace(totals, rounds=totals.rounds + 1, tokens=totals.tokens + tokens)

    def observe_decoding(
        self, seconds: float, stages: Mapping[Stage, float], *, as_served: bool = True
    ) -> None:
        """Count the wall time of a step of the loop.

        Args:
            seconds: of the round in it; 0 if there was none.
            stages: seconds of each stage since the decoder was made; only what they grew counts.
            as_served: whether a request that counts in the totals had part in it.
        """
        for stage, total in stages.items():
            self.stage_seconds.labels(stage).inc(total - self._stage_seconds.get(stage, 0.0))
            self._stage_seconds[stage] = total
        if as_served:
            totals = self.totals
            self.totals = replace(totals, decode_seconds=totals.decode_seconds + seconds)

    def skip_stages(self, stages: Mapping[Stage, float]) -> None:
        """Leave out what the stages took so far: it was warm-up."""
        self._stage_seconds = dict(stages)

    def observe_budgets(self, tuner: BudgetTuner) -> None:
        """Show what `--budget auto` has decided, and what it expects of each budget."""
        self.budget.set(tuner.in_use)
        for one in tuner.candidates:
            self.round_cost.labels(str(one)).set(tuner.costs.of(one, tuner.rows))
            expected = tuner.tokens_per_second(one)
            if expected is not None:
                self.expected_speed.labels(str(one)).set(expected)

    def observe_end(self, mode: str, outcome: str, seconds: float) -> None:
        """Count a request that left the scheduler: "stop", "length", "cancelled" or "failed"."""
        self.requests.labels(mode, outcome).inc()
        if outcome not in ("stop", "length"):
            return
        self.request_seconds.observe(seconds)
        totals = self.totals
        self.totals = replace(
            totals,
            requests=totals.requests + 1,
            request_seconds=totals.request_seconds + seconds,
        )

    def observe_shadow(self, summary: ShadowSummary) -> None:
        """Add the evidence of one shadow request."""
        self.shadow_censored.inc(summary.censored)
        for shape, histogram in summary.histograms.items():
            child = self.shadow_acceptance_length.labels(shape)
            for length, count in histogram.items():
                for _ in range(count):
                    child.observe(length)

    def render(self) -> bytes:
        """Return the Prometheus text format."""
        return generate_latest(self.registry)
