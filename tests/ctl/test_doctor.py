"""The checks of `doctor` that are made on facts: all is well, and each thing that can be wrong."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ddtreectl.cli.main import run
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.disk import Disk
from ddtreectl.facts.driver import Driver
from ddtreectl.facts.gpu import Gpus
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.record_files import parse_lock
from ddtreectl.facts.records import Swap
from ddtreectl.facts.systemd import Unit
from ddtreectl.plan.doctor import Check, checks
from tests.ctl.test_plan import CARDS, PLACE, ROOM, SERVING, TREE

WELL = replace(
    SERVING,
    driver=Driver("580.95.05", "580.95.05", 2),
    units={TREE: replace(SERVING.units[TREE], needs_reload=False)},
    records=replace(
        SERVING.records,
        generations=tuple(
            replace(entry, unit_sha256=sha256(SERVING.unit_files[TREE].encode()).hexdigest())
            for entry in SERVING.records.generations
        ),
    ),
)
UNIT = WELL.units[TREE]
ENVIRONMENTS = "/var/lib/ddtree/environments"


def found(facts: HostFacts) -> list[Check]:
    return checks(PLACE.host_name, PLACE.host, facts)


def test_all_is_well() -> None:
    assert [check for check in found(WELL) if check.state != "ok"] == []
    assert {check.area for check in found(WELL)} == {"systemd", "disk", "driver", "gpu", "unit"}


@pytest.mark.parametrize(
    ("change", "area", "state", "says"),
    [
        ({"missing": ("units",)}, "probe", "failed", "does not tell about units"),
        ({"systemd": False}, "systemd", "failed", "no systemd runs"),
        ({"systemd_run": False}, "systemd", "warning", "no dead-man revert"),
        (
            {"disk": ROOM | {"/var/lib/ddtree": Disk("/var/lib/ddtree", 1 << 20, None)}},
            *("disk", "failed", "/var/lib/ddtree has 0.0 GiB free"),
        ),
        (
            {"disk": ROOM | {"/var/lib/ddtree": Disk("/var/lib/ddtree", 1 << 40, 3)}},
            *("disk", "failed", "and 3 inodes free"),
        ),
        (
            {"disk": ROOM | {ENVIRONMENTS: Disk(ENVIRONMENTS, 1 << 30, 10**6)}},
            *("disk", "warning", f"{ENVIRONMENTS} has 1.0 GiB"),
        ),
        ({"disk": {}}, "disk", "failed", "is not known"),
        ({"driver": Driver(gpus=2)}, "driver", "failed", "no NVIDIA driver is loaded"),
        (
            {"driver": Driver("570.86.15", "580.95.05", 2)},
            *("gpu", "failed", "module 570.86.15, library 580.95.05"),
        ),
        (
            {"driver": Driver("580.95.05", "580.95.05", 2, uvm=False)},
            *("driver", "warning", "/dev/nvidia-uvm is not there"),
        ),
        ({"gpus": Gpus("ok", "580", CARDS[:1])}, "gpu", "failed", "GPU 1 is not there"),
        (
            {"gpus": Gpus("ok", "580", (CARDS[0], replace(CARDS[1], fault="lost")))},
            *("gpu", "failed", "GPU 1"),
        ),
        ({"units": {TREE: replace(UNIT, needs_reload=True)}}, "unit", "warning", "has changed"),
        (
            {"units": {TREE: replace(UNIT, drop_ins=("/etc/x.conf",))}},
            *("unit", "failed", "/etc/x.conf changes"),
        ),
        (
            {"units": {TREE: replace(UNIT, fragment="/run/systemd/system/x")}},
            *("unit", "failed", "systemd loads /run/systemd/system/x"),
        ),
        (
            {"units": {TREE: Unit(TREE, "loaded", "failed", "failed", result="oom-kill")}},
            *("unit", "failed", "result oom-kill"),
        ),
        (
            {"unit_files": {TREE: SERVING.unit_files[TREE] + "# more\n"}},
            *("unit", "failed", "differs from the one of generation 1"),
        ),
        (
            {"records": replace(WELL.records, cordons=(Cordon(1, None, "ECC", "ada@ops", "t"),))},
            *("cordon", "warning", "ECC"),
        ),
        ({"unit_files": {TREE: "[Service]\n"}}, "unit", "failed", "not written by ddtreectl"),
        (
            {"records": replace(WELL.records, lock=parse_lock({}, 1.0))},
            *("lock", "warning", "locked by"),
        ),
        (
            {"records": replace(WELL.records, cordons=(Cordon(1, None, "smoke", "ada@ops", "t"),))},
            *("cordon", "warning", "GPU 1 is cordoned: smoke"),
        ),
        (
            {"records": replace(WELL.records, swaps=(Swap("gpu1", 3, 2, "ada@ops", "t"),))},
            *("swap", "warning", "to generation 3 by ada@ops"),
        ),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, Any], area: str, state: str, says: str) -> None:
    wrong = [c for c in found(replace(WELL, **change)) if (c.area, c.state) == (area, state)]
    assert any(says in check.what for check in wrong), wrong


def test_doctor_of_all_hosts_tells_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = tmp_path / "mixed.yaml"
    here = f"root: {tmp_path}/root, unit_dir: {tmp_path}/u/etc/systemd/system"
    slots = "slots: {cpu7: {device: cpu, port: 39999}}"
    mixed.write_text(
        f"hosts:\n  here: {{connection: local, {here}, {slots}}}\n"
        f"  there: {{address: 127.0.0.1, ssh: {{config: /dev/null, port: 1}}, {slots}}}\n"
    )
    assert run(["--inventory", str(mixed), "doctor", "--all", "--json"]) == 3
    first, second = json.loads(capsys.readouterr().out)["hosts"]
    assert (first["host"], second["host"]) == ("here", "there")
    assert first["checks"]
    assert "does not answer" in second["error"]
    assert run(["--inventory", str(mixed), "doctor", "--all"]) == 3
    said = capsys.readouterr()
    assert "here: " in said.out
    assert "does not answer" in said.err


def test_doctor_of_a_host_and_of_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "local", "--all"]) == 2
    assert "`--all` and a host are one too many" in capsys.readouterr().err
