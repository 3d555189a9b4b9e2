"""Metrics in the text format that Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from ddtree_engine.metrics import Metrics
from ddtree_engine.shadow import LINEAR, SHAPES, ShadowSummary
from ddtree_engine.stages import STAGES, Stage


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def test_rounds_and_ends() -> None:
    metrics = Metrics()
    for tokens in (1, 4, 4, 17):
        metrics.observe_round("tree", tokens)
    metrics.observe_end("tree", "length", 2.0)
    metrics.observe_end("tree", "cancelled", 9.0)
    found = samples(metrics)
    tree = (("mode", "tree"),)
    assert found["ddtree_rounds_total", tree] == 4
    assert found["ddtree_tokens_total", tree] == 26
    assert found["ddtree_acceptance_length_count", tree] == 4
    buckets = [
        found["ddtree_acceptance_length_bucket", (("le", le), *tree)]
        for le in ("1.0", "3.0", "4.0", "16.0", "24.0", "+Inf")
    ]
    assert buckets == [1, 1, 3, 3, 4, 4]
    assert found["ddtree_requests_total", (("mode", "tree"), ("outcome", "cancelled"))] == 1
    # A request that was cut off says nothing about how long requests take.
    assert found["ddtree_request_seconds_count", ()] == 1
    assert metrics.totals.requests == 1
    assert metrics.totals.acceptance_length == 6.5


def test_totals_leave_out_what_did_not_run_as_served() -> None:
    metrics = Metrics()
    metrics.observe_round("tree", 4)
    metrics.observe_decoding(2.0, {})
    metrics.observe_round("ar", 1, as_served=False)
    metrics.observe_decoding(5.0, {}, as_served=False)
    assert metrics.totals.acceptance_length == 4.0
    assert metrics.totals.tokens_per_second == 2.0
    assert samples(metrics)["ddtree_rounds_total", (("mode", "ar"),)] == 1


def test_nothing_yet() -> None:
    totals = Metrics().totals
    assert totals.acceptance_length is None
    assert totals.tokens_per_second is None


def test_warm_up_is_left_out_of_stage_seconds() -> None:
    metrics = Metrics()
    stages: dict[Stage, float] = dict.fromkeys(STAGES, 5.0)
    metrics.skip_stages(stages)
    stages["verify"] += 2.0
    metrics.observe_round("tree", 6)
    metrics.observe_decoding(3.0, stages)
    metrics.observe_decoding(0.0, stages)
    found = samples(metrics)
    assert found["ddtree_stage_seconds_total", (("stage", "verify"),)] == 2.0
    assert found["ddtree_stage_seconds_total", (("stage", "draft"),)] == 0.0
    assert metrics.totals.tokens_per_second == 2.0


def test_shadow_evidence_by_shape() -> None:
    metrics = Metrics()
    histograms = {shape: {1: 2, 3: 1} for shape in SHAPES} | {LINEAR: {1: 3}}
    for _ in range(2):
        metrics.observe_shadow(ShadowSummary(histograms, censored=1))
    found = samples(metrics)
    assert found["ddtree_shadow_acceptance_length_sum", (("shape", "16"),)] == 10
    assert found["ddtree_shadow_acceptance_length_count", (("shape", LINEAR),)] == 6
    assert found["ddtree_shadow_censored_rounds_total", ()] == 2


def test_two_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.observe_round("ar", 1)
    assert ("ddtree_rounds_total", (("mode", "ar"),)) not in samples(other)
