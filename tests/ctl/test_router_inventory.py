"""The router's section of an inventory, and where the router finds the services."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ddtreectl.inventory.loader import parse
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.inventory.workers import Worker, out_of_reach, parts, with_moved, workers
from tests.ctl.test_plan import wish

REACH: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "data/router_reach.yaml").read_text()
)
SERVICE = wish().candidate.service.model_dump()

FLEET = """\
router: {host: h1, address: 0.0.0.0, port: 8000}
hosts:
  h1:
    address: h1.example
    slots:
      gpu0: {gpus: [0], port: 30000}
      gpu1: {gpus: [1], address: 0.0.0.0, port: 30001}
      gpu2: {gpus: [2], port: 30002, behind_router: false}
  h2:
    address: h2.example
    slots:
      gpu0: {gpus: [0], address: 0.0.0.0, port: 30000}
      gpu1: {gpus: [1], address: 10.0.0.2, port: 30001}
      gpu2: {gpus: [2], address: "fd00::2", port: 30002}
"""


def test_services_are_found_from_the_routers_host() -> None:
    assert {worker.name: worker.url for worker in workers(parse(FLEET, "fleet.yaml")).values()} == {
        "h1/gpu0": "http://127.0.0.1:30000",
        "h1/gpu1": "http://127.0.0.1:30001",
        "h2/gpu0": "http://h2.example:30000",
        "h2/gpu1": "http://10.0.0.2:30001",
        "h2/gpu2": "http://[fd00::2]:30002",
    }


def test_a_fleet_without_router_has_no_workers() -> None:
    assert workers(parse(FLEET.partition("\n")[2], "fleet.yaml")) == {}


@pytest.mark.parametrize(
    ("router_host", "slots_host", "url"),
    [
        ("connection: local", "connection: local", "http://127.0.0.1:30000"),
        ("address: 127.0.0.1", "address: localhost", "http://localhost:30000"),
        ("connection: local", "address: h2.example", "http://h2.example:30000"),
        ("address: h1.example", "address: 10.0.0.2", "http://10.0.0.2:30000"),
    ],
)
def test_an_address_of_ones_own_machine_is_one_for_a_router_there(
    router_host: str, slots_host: str, url: str
) -> None:
    fleet = f"""\
router: {{host: h1, address: 10.0.0.1, port: 8000}}
hosts:
  h1: {{{router_host}, slots: {{gpu0: {{gpus: [0], port: 30000, behind_router: false}}}}}}
  h2: {{{slots_host}, slots: {{gpu0: {{gpus: [0], address: 0.0.0.0, port: 30000}}}}}}
"""
    (worker,) = workers(parse(fleet, "fleet.yaml")).values()
    assert worker.url == url


@pytest.mark.parametrize("case", REACH, ids=[case["name"] for case in REACH])
def test_whether_the_router_reaches_a_service(case: dict[str, Any]) -> None:
    worker = Worker("h2/gpu0", case["url"])
    service = ServiceSpec.model_validate({**SERVICE, **case["service"]})
    assert out_of_reach(worker, service) == case["why"]


@pytest.mark.parametrize(
    ("moved", "name"),
    [
        ((), "h1/gpu0"),
        (("h2/gpu0",), "h1/gpu0 for h2/gpu0"),
        (("h3/gpu1", "h2/gpu0"), "h1/gpu0 for h2/gpu0,h3/gpu1"),
    ],
)
def test_a_name_says_which_slots_a_worker_stands_for(moved: tuple[str, ...], name: str) -> None:
    assert with_moved("h1/gpu0", moved) == name
    assert parts(name) == ("h1/gpu0", frozenset(moved))
