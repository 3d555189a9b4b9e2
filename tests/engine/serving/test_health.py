"""What /health says of a decode loop that has not come round for long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from ddtree_engine.scheduler import Scheduler, State
from ddtree_engine.server import info
from ddtree_engine.server.app import create_app
from ddtree_engine.server.service import Service
from ddtree_engine.server.settings import Settings
from tests.engine.serving.test_middleware import get


@pytest.mark.parametrize(
    ("looks", "status"),
    [
        pytest.param([(True, 0.1)], "ok", id="alive"),
        pytest.param([(False, 40.0), (True, 0.1)], "ok", id="the process was paused"),
        pytest.param([(False, 40.0), (False, 40.5)], "stuck", id="stuck"),
    ],
)
def test_an_old_heartbeat_is_looked_at_again(
    looks: list[tuple[bool, float]], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "SECOND_LOOK_SECONDS", 0.0)
    service = Service(Settings(model="bundled", drafter="bundled", served_model_name="m"))
    service.scheduler = cast("Scheduler", SimpleNamespace(state=State.RUNNING))
    expected = looks[-1]
    monkeypatch.setattr(service, "heartbeat", iter(looks).__next__)
    answer = get(create_app(service), "/health")
    assert answer.json() == {"status": status, "heartbeat_age_seconds": expected[1]}
    assert answer.status_code == (200 if expected[0] else 503)
