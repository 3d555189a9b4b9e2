"""The guard that a unit runs before it starts on a GPU: what the kernel log has against it."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ddtreectl import bundle
from ddtreectl.facts.cordons import Cordon, cordon
from ddtreectl.facts.gpu import unknown
from ddtreectl.facts.kernel_log import GpuError, KernelLog
from ddtreectl.facts.records import Records
from ddtreectl.facts.systemd import Unit
from ddtreectl.gpu.classify import classify
from ddtreectl.gpu.xids import XIDS
from ddtreectl.plan.status import host_status
from ddtreectl.units import xid_guard
from tests.ctl.test_plan import CARDS, PLACE, SERVING, TREE

STARTS, DOES_NOT = 0, 1
CARD = replace(unknown(1), uuid="GPU-1", pci="0000:1b:00")
PAGE_FAULT = "PCI:0000:1b:00): 31, pid=7, name=python3, MMU Fault"
OTHER_GPU = "PCI:0000:0b:00): 31, pid=7, name=python3, MMU Fault"
UNCONTAINED = "PCI:0000:1b:00): 95, pid=7, name=python3, Uncontained: LTC TAG"
CONTAINED = "PCI:0000:1b:00): 94, pid=7, name=python3, Contained"
NOW = time.time()


class Log:
    """A host whose kernel log says what a test wants it to."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.lines = folder / "log"
        self.python = sys.executable
        self.journalctl(f"#!/bin/sh\ncat '{self.lines}'\n")

    def journalctl(self, text: str) -> None:
        path = self.programs / "journalctl"
        path.write_text(text)
        path.chmod(0o755)

    def starts(self, *said: tuple[str, float]) -> bool:
        """Whether the unit starts, after Xids so many seconds ago."""
        lines = [f"{NOW - ago:.6f} h1 kernel: NVRM: Xid ({text}" for text, ago in said]
        self.lines.write_text("\n".join(["-- no entries --", *lines, ""]))
        words = xid_guard.argv(
            self.python, str(bundle.templates()), str(self.root), "u.service", [CARD]
        )
        env = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        self.said = done.stdout
        assert done.returncode in {STARTS, DOES_NOT}, done.stderr
        return done.returncode == STARTS

    def cordons(self) -> list[Cordon]:
        found = sorted((self.root / "cordons").glob("*"))
        return [cordon(path.stem, json.loads(path.read_text())) for path in found]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_an_error_of_an_application_restarts_and_a_repeated_one_drains(log: Log) -> None:
    assert log.starts(*[(PAGE_FAULT, 10.0)] * 3)
    assert log.cordons() == []
    assert not log.starts(*[(PAGE_FAULT, 10.0)] * 4)
    assert "GPU 1 (GPU-1) is drained: Xid 31, 4 times within 1 h" in log.said
    (made,) = log.cordons()
    assert (made.gpu, made.uuid, made.by) == (1, "GPU-1", "u.service")
    assert made.reason == made.drained == "Xid 31, 4 times within 1 h"
    assert not log.starts()  # the next boot, whose log has nothing of it
    (log.root / "cordons/GPU-1.json").unlink()
    assert log.starts()


def test_what_was_long_ago_or_elsewhere_or_dealt_with_counts_for_nothing(log: Log) -> None:
    assert log.starts(*[(PAGE_FAULT, 3700.0)] * 9, *[(PAGE_FAULT, 10.0)] * 3)
    assert log.starts(*[(OTHER_GPU, 10.0)] * 9)
    for key in ("", "0000:1b:00"):
        (log.root / "settled.json").write_text(json.dumps({key: NOW - 5}))
        assert log.starts(*[(PAGE_FAULT, 10.0)] * 9)
        assert not log.starts((UNCONTAINED, 1.0))


def test_contained_memory_errors_have_a_day(log: Log) -> None:
    assert log.starts((CONTAINED, 80_000.0))
    assert not log.starts((CONTAINED, 80_000.0), (CONTAINED, 1.0))


def test_an_error_that_a_reset_settles_keeps_it_down_until_the_reboot(log: Log) -> None:
    assert not log.starts((UNCONTAINED, 10_000.0))
    assert log.cordons() == []
    assert log.starts()


def test_a_cordon_of_an_operator_keeps_its_words(log: Log) -> None:
    folder = log.root / "cordons"
    folder.mkdir()
    mine = Cordon(1, "GPU-1", "it smells", "ada@ops", "2026-11-30T01:00")
    (folder / "GPU-1.json").write_text(json.dumps(mine.to_json()))
    assert log.starts(), "what is cordoned goes on, and comes back after an error"
    assert not log.starts(*[(PAGE_FAULT, 1.0)] * 4)
    assert log.cordons() == [replace(mine, drained="Xid 31, 4 times within 1 h")]


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nprintf '\\377\\n1.5 NVRM: Xid (PCI:::): x'\n", ""]
)
def test_a_log_that_cannot_be_read_keeps_nothing_down(log: Log, text: str) -> None:
    log.journalctl(text)
    assert log.starts((UNCONTAINED, 1.0))


def test_nothing_else_that_is_broken_keeps_it_down(log: Log) -> None:
    for damaged in ("no JSON", "[]", '{"": "x"}', '{"": null}'):
        (log.root / "settled.json").write_text(damaged)
        assert log.starts((PAGE_FAULT, 1.0))
    (log.root / "cordons").write_text("in the place of the folder")
    assert not log.starts(*[(PAGE_FAULT, 1.0)] * 4)
    assert "the cordon cannot be written" in log.said
    log.python = str(log.root / "no-python")
    assert log.starts((UNCONTAINED, 1.0))


def guard() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guard", bundle.templates() / xid_guard.NAME)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("group", [False, True])
def test_the_guard_keeps_down_what_a_deploy_refuses(group: bool) -> None:
    """Every row of the table, as often as makes a difference."""
    module, now = guard(), 100_000.0
    slot = PLACE.host.slots["gpu1"].model_copy(update={"gpus": [0, 1] if group else [1]})
    entry = PLACE.host.model_copy(update={"slots": {"gpu1": slot}})
    allowed = module.limits(xid_guard.limits(group=group))
    cards = tuple(replace(card, pci=f"0000:{i}b:00") for i, card in enumerate(CARDS))
    for number in XIDS:
        for count in range(1, 6):
            error = GpuError("0000:1b:00", number, count, (now - 1,) * count)
            facts = replace(
                SERVING,
                gpus=replace(SERVING.gpus, gpus=cards),
                kernel_log=KernelLog("journal", now, (error,)),
            )
            refused = classify("h", entry, facts).against([1]) is not None
            told = module.against([(number, now - 1)] * count, allowed, 0.0, now)
            assert (told is not None) is refused, (number, count)


def test_status_says_that_a_service_is_drained_and_what_to_do() -> None:
    down = Unit(TREE, "loaded", "inactive", "dead", result="exec-condition")
    made = Cordon(
        1, CARDS[1].uuid, "Xid 31, 4 times within 1 h", TREE, "t", drained="Xid 31, 4 times"
    )
    facts = replace(
        SERVING,
        units={TREE: down},
        listeners=(),
        processes={},
        answers={},
        records=replace(SERVING.records, cordons=(made,)),
    )

    def found(records: Records) -> tuple[str, str]:
        told = replace(facts, records=records)
        (service,) = host_status("gpuhost", PLACE.host, told, now=0.0, locked=False).services
        return service.health, service.problem

    health, problem = found(facts.records)
    assert health == "drained"
    assert "GPU 1 was drained by the host itself: Xid 31, 4 times" in problem
    assert "`ddtreectl migrate gpuhost:1` moves its service" in problem
    assert found(replace(facts.records, cordons=()))[0] == "failed"
    assert found(replace(facts.records, stopped=frozenset({"gpu1"})))[0] == "stopped"
    opened = replace(
        facts, unit_files={}, records=replace(facts.records, stopped=frozenset({"gpu1"}))
    )
    (bare,) = host_status("gpuhost", PLACE.host, opened, now=0.0, locked=False).services
    assert (bare.health, bare.problem) == ("stopped", ""), "its unit is installed with a start"
    assert found(replace(facts.records, cordons=(replace(made, drained=""),)))[0] == "failed"
