"""The router's unit, and the line of a service's unit that asks it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ddtreectl.errors import DdtreectlError
from ddtreectl.inventory.layout import Layout
from ddtreectl.inventory.loader import parse
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.inventory.select import find_place, service_for
from ddtreectl.inventory.service import Mode
from ddtreectl.inventory.workers import router_urls
from ddtreectl.units import guard, lint
from ddtreectl.units import router as router_unit
from ddtreectl.units.render import RenderedUnit, render

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = RouterSettings(host="ct200", address="10.1.2.200", port=8000)
FLEET = """\
router: {host: ct200, address: ADDRESS, port: 8000}
hosts:
  ct200:
    address: ct200.example
    slots: {gpu1: {gpus: [1], address: 0.0.0.0, port: 30001, behind_router: BEHIND}}
  ct129:
    address: ct129.example
    slots: {cpu0: {device: cpu, address: 0.0.0.0, port: 30001, behind_router: BEHIND}}
"""

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def unit(folder: str = "/var/lib/ddtree/router/environments/smg-1.13.0-0123456789ab") -> str:
    return router_unit.render(folder, "/var/lib/ddtree/router/workers.json", SETTINGS)


def guarded(folder: Path) -> RenderedUnit:
    inventory = parse(FLEET.replace("ADDRESS", "10.1.2.200").replace("BEHIND", "true"), "f.yaml")
    place = find_place(inventory, "ct129")
    program = folder / "environments/e/bin/ddtree-engine"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return render(
        layout=Layout(str(folder), str(folder / "environments"), str(folder)),
        slot=place.slot_name,
        service=service_for(inventory, place, Mode.TREE),
        generation=3,
        environment="e",
        guarded=(router_urls(inventory)["ct129"], "ct129/cpu0"),
    )


def said_by_systemd(path: Path) -> str:
    done = subprocess.run(lint.command(str(path)), capture_output=True, text=True, check=False)
    return lint.complaints(done.returncode, done.stdout + done.stderr)


def test_the_unit_is_the_golden_one() -> None:
    assert unit() == (GOLDEN / "router.service").read_text()


@needs_analyze
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    program = tmp_path / "bin/smg"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    router = tmp_path / "ddtree-router.service"
    router.write_text(unit(str(tmp_path)))
    assert said_by_systemd(router) == ""
    bound = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20"]
    done = subprocess.run([*bound, str(router)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rendered = guarded(tmp_path)
    (tmp_path / rendered.name).write_text(rendered.text)
    assert said_by_systemd(tmp_path / rendered.name) == ""


def test_a_service_asks_the_router_before_it_starts(tmp_path: Path) -> None:
    lines = guarded(tmp_path).text.splitlines()
    (condition,) = [line for line in lines if line.startswith("ExecCondition=")]
    assert condition.startswith("ExecCondition=/bin/sh -c ")
    assert condition.endswith(
        f"{tmp_path}/environments/e/bin/python "
        f"{tmp_path}/slots/cpu0/generations/000003/slot_guard.py http://10.1.2.200:8000 ct129/cpu0"
    )
    assert "$$?" in condition  # a lone `$` would be systemd's to expand


def test_a_service_that_comes_back_does_not_ask_the_router(tmp_path: Path) -> None:
    text = guarded(tmp_path).text
    assert guard.drop_in(text) == "[Service]\nExecCondition=\n"
    of_a_gpu = "ExecCondition=+/bin/sh -c true /d/xid_guard.py"
    assert guard.drop_in(text.replace("\nExecStart=", f"\n{of_a_gpu}\nExecStart=")) == (
        f"[Service]\nExecCondition=\n{of_a_gpu}\n"
    )


@pytest.mark.parametrize(
    ("address", "urls"),
    [
        ("::", {"ct200": "http://127.0.0.1:8000", "ct129": "http://ct200.example:8000"}),
        ("10.1.2.200", {"ct200": "http://10.1.2.200:8000", "ct129": "http://10.1.2.200:8000"}),
        ("127.0.0.1", {"ct200": "http://127.0.0.1:8000"}),
        ("fd00::1", {"ct200": "http://[fd00::1]:8000", "ct129": "http://[fd00::1]:8000"}),
    ],
)
def test_hosts_ask_the_router_where_they_reach_it(address: str, urls: dict[str, str]) -> None:
    text = FLEET.replace("ADDRESS", f'"{address}"').replace("BEHIND", "false")
    assert router_urls(parse(text, "f.yaml")) == urls


def test_a_value_that_no_unit_can_hold_is_an_error() -> None:
    with pytest.raises(DdtreectlError, match="the router's unit cannot be rendered"):
        router_unit.render("no absolute path", "/workers.json", SETTINGS)
