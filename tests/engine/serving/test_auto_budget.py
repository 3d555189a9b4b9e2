"""A server with `--budget auto`: what it says of it, and text that does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddtree_engine.budget_tuner import CANDIDATES, MOST
from tests.engine.serving.server_process import ServerProcess


@pytest.fixture(scope="module")
def tuned(checkpoint: tuple[Path, Path]) -> Iterator[ServerProcess]:
    target, drafter = checkpoint
    options = ["--model", str(target), "--drafter", str(drafter), "--budget", "auto"]
    with ServerProcess(*options, "--max-running", "2", "--max-context", "400") as process:
        process.wait_until_ready()
        yield process


def test_it_says_which_budget_is_in_use(tuned: ServerProcess) -> None:
    body = {"prompt": "def f(x):\n", "max_tokens": 200, "temperature": 0.8, "seed": 3}
    answers = [
        tuned.post("/v1/completions", {**body, **more}).json()
        for more in ({}, {"ddtree": {"mode": "ar"}}, {"ddtree": {"budget": 5}})
    ]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert [answer["ddtree"]["budget"] for answer in answers] == ["auto", 0, 5]
    info = tuned.get("/server_info").json()
    assert info["budget"] == "auto"
    assert info["budget_in_use"] in CANDIDATES
    families = {
        family.name: {sample.labels.get("budget"): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(tuned.get("/metrics").text)
    }
    assert families["ddtree_budget_in_use"] == {None: info["budget_in_use"]}
    for name in ("ddtree_expected_tokens_per_second", "ddtree_expected_round_seconds"):
        assert set(families[name]) == {str(budget) for budget in CANDIDATES}
        assert min(families[name].values()) > 0


def test_a_request_may_ask_for_no_more_than_is_planned_for(tuned: ServerProcess) -> None:
    body = {"prompt": "def f(x):\n", "max_tokens": 3, "ddtree": {"budget": MOST + 1}}
    answer = tuned.post("/v1/completions", body)
    assert answer.status_code == 400
    assert f"over this server's {MOST}" in answer.json()["error"]["message"]
