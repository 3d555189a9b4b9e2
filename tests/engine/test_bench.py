"""`ddtree-engine bench` on a CPU: every figure is there."""

from __future__ import annotations

import json

import pytest

from ddtree_engine.cli.main import main


def test_the_demo_shape(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--device", "cpu", "--modes", "ar,linear,tree:17", "--prefix", "32,5"]
    assert main([*arguments, "--runs", "2", "--rows", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rounds = document["rounds"]
    assert [(one["mode"], one["nodes"], one["prefix"]) for one in rounds] == [
        (mode, nodes, prefix)
        for prefix in (32, 5)
        for mode, nodes in (("ar", 1), ("linear", 16), ("tree:17", 18))
    ]
    for one in rounds:
        assert len(one["round"]["runs"]) == len(one["floor"]["runs"]) == 2
        assert one["ratio"] == one["round"]["median"] / one["floor"]["median"] > 0
    assert set(rounds[0]["stages"]) == {"verify", "accept", "commit of 1"}
    assert {"draft", "build", "commit of 8"} <= set(rounds[1]["stages"])
    # Each stage is a part of the round, and more nodes leave more behind.
    assert rounds[0]["state_bytes"] < rounds[1]["state_bytes"] < rounds[2]["state_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "nowhere"], "there is no shape `nowhere`"),
        (["--prefix", "1,x"], "--prefix takes numbers"),
        (["--runs", "0"], "--runs must be 1 or more"),
        (["--modes", "shadow"], "bench times"),
    ],
)
def test_what_cannot_be_timed_is_said(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--device", "cpu", *arguments]) == 1
    assert message in capsys.readouterr().err
