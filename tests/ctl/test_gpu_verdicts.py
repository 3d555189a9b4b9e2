"""Verdicts on GPUs. A case is a file: what the host said, and what that leads to.

A case without `gpus` has two healthy GPUs; `log` holds lines of the kernel log as they follow its
heading; they were read at 1700003600.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ddtreectl.apply import evidence
from ddtreectl.facts import kernel_log, nvidia_smi
from ddtreectl.facts.driver import Driver
from ddtreectl.facts.gpu import Gpus
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.output import Output
from ddtreectl.facts.processes import Process
from ddtreectl.facts.records import Records
from ddtreectl.gpu import table
from ddtreectl.gpu.classify import classify, recovery_action
from ddtreectl.gpu.verdict import HostHealth, Verdict
from ddtreectl.inventory.model import HostEntry
from tests.ctl.test_plan import generation

FOLDER = Path(__file__).parent / "data/gpu"
CASES = sorted(FOLDER.glob("*.yaml"))
HEALTHY = (FOLDER / "two_healthy.txt").read_text()
PIDS = (900, 901)


def health(case: dict[str, Any]) -> HostHealth:
    slot: dict[str, Any] = {"gpus": [0, 1] if case.get("together") else [1], "port": 30001}
    if case.get("claims") == 0:
        slot = {"device": "cpu", "port": 30001}
    entry = HostEntry.model_validate(
        {"address": "10.0.0.1", "gpus": case.get("inventory"), "slots": {"a": slot}}
    )
    return classify("h1", entry, facts_of(case), case.get("settled"))


def facts_of(case: dict[str, Any]) -> HostFacts:
    """What a host of the case has said."""
    source = case.get("source", "journal\n")
    log = f"now 1700003600 4000.0\n{source}{case.get('log', '')}"
    processes = {
        pid: Process(
            pid=pid,
            ppid=1,
            state="S",
            ticks=1,
            started=0.0,
            user="root",
            unit=None,
            generation=None,
            command="python3",
        )
        for pid in PIDS
    }
    return HostFacts(
        gpus=nvidia_smi.parse(Output(case.get("returncode", 0), case.get("gpus", HEALTHY))),
        kernel_log=kernel_log.parse(Output(0, log)),
        driver=Driver(**case.get("driver", {})),
        processes=processes,
    )


def load(path: Path) -> dict[str, Any]:
    loaded = YAML(typ="safe").load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = load(path)
    found = health(case)
    bad = {gpu.name: str(gpu.verdict) for gpu in found.gpus if gpu.verdict is not Verdict.OK}
    assert str(found.verdict) == case["verdict"]
    assert bad == case.get("bad", {})
    remarks = [f"{name}: {f.reason}" if name else f.reason for name, f in found.remarks()]
    assert remarks[:1] == ([case["reason"]] if "reason" in case else [])
    if "hint" in case:
        assert found.remarks()[0][1].hint == case["hint"]


def test_each_row_of_the_table_has_a_case() -> None:
    seen = set()
    for path in CASES:
        found = health(load(path))
        seen |= {f.sign for gpu in found.gpus for f in gpu.findings}
        seen |= {f.sign for f in found.findings}
    wanted = {f"xid-{number}" for number in table.XIDS}
    wanted |= {f"gpu-{sign}" for sign in table.FAULTS}
    wanted |= {f"gpu-recovery-{action}" for action in table.RECOVERY_ACTIONS}
    wanted |= {f"driver-{sign}" for sign in table.DRIVER}
    assert wanted - seen == set()


def test_each_row_says_who_says_so_and_what_to_do() -> None:
    rows = [*table.XIDS.values(), *table.FAULTS.values(), *table.DRIVER.values()]
    for row in [*rows, *table.RECOVERY_ACTIONS.values(), table.UNKNOWN]:
        assert row.source
        assert row.meaning
        assert row.hint or row.verdict in {Verdict.OK, Verdict.DEGRADED}


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("None", None),
        ("", None),
        ("Reset", "reset"),
        ("GPU Reset Required", "reset"),
        ("Node Reboot Required", "reboot"),
        ("System Reboot", "reboot"),
        ("OS Reboot", "reboot"),
        ("PF FLR", "reset"),
        ("Drain P2P", "drain-p2p"),
        ("Drain and Reset", "drain-and-reset"),
        ("DRAIN_AND_RESET", "drain-and-reset"),
        ("Bus Reset", "bus-reset"),
        ("Recover IMEX Domain", "recover-imex"),
        ("Sing a song", "other"),
    ],
)
def test_recovery_actions_in_the_words_of_several_drivers(words: str, action: str | None) -> None:
    assert recovery_action(words) == action


def test_verdicts_are_in_order() -> None:
    assert [v.rank for v in Verdict] == [0, 1, 2, 3, 4]
    assert [v for v in Verdict if v.takes_no_service] == [Verdict.DRAIN_GPU, Verdict.CORDON_HOST]


def test_what_speaks_against_a_place() -> None:
    one_lost = health(load(FOLDER / "xid_095.yaml"))
    assert one_lost.against([0]) is None
    found = one_lost.against([1])
    assert found is not None
    assert found[0] == "GPU 1"
    reboot = health(load(FOLDER / "xid_079.yaml")).against([0])
    assert reboot is not None
    assert reboot[1].verdict is Verdict.CORDON_HOST
    assert HostHealth().against([0]) is None


def test_a_missing_card_is_named_by_the_slot_that_it_served() -> None:
    there = nvidia_smi.parse(Output(0, (FOLDER / "two_healthy.txt").read_text())).gpus[0]
    bound = replace(generation(1), slot="a", gpus=("GPU-2222",))
    facts = HostFacts(gpus=Gpus("ok", gpus=(there,)), records=Records(generations=(bound,)))
    entry = HostEntry.model_validate({"address": "h", "slots": {"a": {"gpus": [1], "port": 1}}})
    (finding,) = classify("h1", entry, facts).findings
    assert finding.reason.endswith("(1 of 2 are there; the GPU-2222 of slot `a` is not)")


def test_what_is_wrong_with_a_gpu_is_part_of_the_evidence() -> None:
    case = load(FOLDER / "xid_031.yaml")
    log = kernel_log.parse(Output(0, f"now 1700003600 4000.0\njournal\n{case['log']}"))
    facts = HostFacts(gpus=nvidia_smi.parse(Output(0, HEALTHY)), kernel_log=log)
    entry = HostEntry.model_validate({"address": "h", "slots": {"a": {"gpus": [1], "port": 1}}})
    lines = evidence.gpus("h1", entry, facts)
    assert lines[:2] == ["gpu 0: 4/97887 MiB", "gpu 1: 4/97887 MiB"]
    assert lines[2].startswith("gpu: restart-app: GPU 1: Xid 31: memory page fault")
    assert evidence.gpus("h1", entry, HostFacts()) == []


@given(said=st.binary(max_size=400), log=st.binary(max_size=400), code=st.integers(0, 255))
def test_whatever_a_host_says_there_is_a_verdict(said: bytes, log: bytes, code: int) -> None:
    text = said.decode(errors="replace")
    for stdout in (text, f"driver\n580\nnodes\n{text}\ngpus {nvidia_smi.COLUMNS[0]}\n{text}"):
        case = {"gpus": stdout, "returncode": code, "log": log.decode(errors="replace")}
        assert health(case).verdict in Verdict


CELLS = st.sampled_from(
    ["0", "1", "[N/A]", "[GPU is lost]", "ERR!", "Yes", "-1", "9" * 5000, "GPU-1", "", "None"]
)


@given(rows=st.lists(st.lists(CELLS, min_size=3, max_size=12), max_size=6))
def test_whatever_a_table_holds_there_is_a_verdict(rows: list[list[str]]) -> None:
    lines = "\n".join(", ".join(row) for row in rows)
    for columns in nvidia_smi.COLUMNS:
        found = nvidia_smi.parse(Output(0, f"gpus {columns}\n{lines}\nstatus 0\n"))
        assert isinstance(found, Gpus)
        case = {"gpus": f"gpus {columns}\n{lines}\nstatus 0\n"}
        assert health(case).verdict in Verdict
