"""Hosts and the router put together: who stands for a service that has moved, what is wrong."""

from dataclasses import replace

import pytest

from ddtreectl.apply.router import Router
from ddtreectl.cli import output
from ddtreectl.cli.status_view import Seen, View
from ddtreectl.errors import ExitCode, UnreachableError
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.moves import move
from ddtreectl.facts.router import RouterFacts, RouterWorker
from ddtreectl.facts.systemd import Unit
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.inventory.workers import Worker
from ddtreectl.plan.status import host_status
from tests.ctl.test_plan import PLACE, SERVING, TREE

SOURCE, TARGET = "gpuhost/gpu1", "other/gpu1"
SKIPPED = replace(
    SERVING, units={TREE: Unit(TREE, "loaded", result="exec-condition")}, listeners=(), answers={}
)
"""As a host is whose unit has asked the router, and was told that another slot stands for it."""

MOVED = RouterFacts(
    "up",
    "",
    {TARGET: "http://10.0.0.3:30001"},
    {SOURCE: TARGET},
    (RouterWorker(TARGET, frozenset({SOURCE}), "http://10.0.0.3:30001", "ready", 0),),
)
WORKERS = {name: Worker(name, f"http://{name}") for name in (SOURCE, TARGET)}


def never() -> None:
    raise AssertionError("a view asks nobody")


ROUTER = Router(
    RouterSettings(host="other", address="10.0.0.3", port=8000),
    WORKERS,
    {},
    never,  # type: ignore[arg-type]
)


def view(facts: HostFacts, routed: RouterFacts | None) -> View:
    found = host_status("gpuhost", PLACE.host, facts, now=160.0, locked=False)
    return View.of({"gpuhost": found}, {}, ROUTER if routed else None, routed)


def printed(shown: View, capsys: pytest.CaptureFixture[str]) -> str:
    output.stdout().print(shown.table())
    return capsys.readouterr().out


def test_a_unit_that_the_router_keeps_down_has_moved(capsys: pytest.CaptureFixture[str]) -> None:
    alone = view(SKIPPED, None)
    assert alone.hosts[0].services[0].health == "failed"
    assert alone.exit_code() is ExitCode.FAILED
    routed = view(SKIPPED, MOVED)
    (service,) = routed.hosts[0].services
    assert (service.health, service.moved_to, service.problem) == ("moved", TARGET, "")
    assert routed.exit_code() is ExitCode.DONE
    said = printed(routed, capsys)
    assert f"{SOURCE}: moved to {TARGET}" in said
    assert "failed" not in said


def test_a_marker_on_the_host_says_it_without_a_router(capsys: pytest.CaptureFixture[str]) -> None:
    gone = move({"state": "fenced"}, source=SOURCE, target=TARGET)
    records = replace(SKIPPED.records, moved={"gpu1": gone})
    shown = view(replace(SKIPPED, records=records), None)
    assert shown.hosts[0].services[0].moved_to == TARGET
    assert shown.exit_code() is ExitCode.DONE
    assert f"{SOURCE}: moved to {TARGET}" in printed(shown, capsys)


def test_what_serves_although_it_has_moved_is_no_moved_service() -> None:
    shown = view(SERVING, MOVED)
    assert shown.hosts[0].services[0].health == "healthy"
    assert shown.remarks == [f"{SOURCE} serves beside {TARGET}, which it was moved to"]
    assert shown.exit_code() is ExitCode.FAILED


def test_a_service_that_failed_and_has_not_moved_has_failed() -> None:
    shown = view(SKIPPED, replace(MOVED, moved={}))
    assert shown.hosts[0].services[0].health == "failed"
    assert shown.exit_code() is ExitCode.FAILED


def test_a_router_that_is_not_well_is_part_of_the_exit_code() -> None:
    assert view(SKIPPED, replace(MOVED, state="down")).exit_code() is ExitCode.FAILED
    unreachable = view(SKIPPED, RouterFacts("unreachable", "no answer"))
    assert unreachable.hosts[0].services[0].health == "failed"
    gone: Seen = {"gpuhost": UnreachableError("no")}
    assert View.of(gone, {}, ROUTER, MOVED).exit_code() is ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    ("found", "fine"),
    [(None, False), ("not_ready", False), ("ready", True)],
)
def test_a_service_that_the_router_does_not_reach_is_told(found: str | None, fine: bool) -> None:
    url = "http://10.0.0.2:30001"
    known = (RouterWorker(SOURCE, frozenset(), url, found, 0),) if found else ()
    shown = view(SERVING, RouterFacts("up", "", {SOURCE: url}, {}, known))
    assert shown.hosts[0].services[0].health == "healthy"
    told = f"{SOURCE} serves, and the router has no answer from {url}"
    assert [told in remark for remark in shown.remarks] == ([] if fine else [True])
