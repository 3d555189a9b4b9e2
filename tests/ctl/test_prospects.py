"""What is found out about a slot that might take a service, before anything is brought there."""

from dataclasses import replace
from pathlib import Path

import pytest

from ddtreectl.apply.donors import Donors
from ddtreectl.apply.prospects import Prospects
from ddtreectl.cli.context import Context
from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.select import find_place
from ddtreectl.plan.placement import Asked
from tests.ctl.test_plan import BARE, spec

FLEET = """\
router: {host: a, address: 127.0.0.1, port: 8000}
hosts:
  a:
    connection: local
    slots: {gpu1: {gpus: [1], port: 30001, behind_router: false}}
  b:
    connection: local
    slots: {gpu1: {gpus: [1], address: 0.0.0.0, port: 30001}}
"""


WHY = "it wants an `api_key`, and tells the router nothing without"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, []),
        ("/etc/ddtree-keys", [f"the router would get no answer from the service there: {WHY}"]),
    ],
)
def test_a_service_does_not_move_behind_a_router_that_it_does_not_answer(
    tmp_path: Path, key: str | None, said: list[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    opened = Context(path)
    inventory = opened.inventory()
    sessions = {name: opened.session(inventory, name) for name in inventory.hosts}
    facts: dict[str, HostFacts] = {name: replace(BARE, keys={key or "": True}) for name in sessions}
    prospects = Prospects(sessions, facts, {}, Donors(inventory, sessions, facts, "a"))
    source, target = find_place(inventory, "a"), find_place(inventory, "b")
    service = spec().model_copy(update={"api_key": key})
    (found,) = prospects.of(Asked(source, service), [target])
    assert [reason for reason in found.refusals if "router" in reason] == said
