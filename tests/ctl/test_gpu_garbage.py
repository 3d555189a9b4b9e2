"""What no driver should say and some do: facts and verdicts are made of it all the same."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ddtreectl.facts import kernel_log, nvidia_smi
from ddtreectl.facts.output import Output
from ddtreectl.gpu.classify import classify
from ddtreectl.plan.gpu_report import gpu_report
from ddtreectl.plan.status import host_status
from tests.ctl.test_plan import PLACE, SERVING, refusals, wish

NUMBERS = ["0", "1", "-1", "2", "64", "1_0", "\u0661", "9" * 20, "1e9", "nan", "inf", "12.0", ".5"]
FAULTS = [
    "[N/A]",
    "[Unknown Error]",
    "ERR!",
    "[GPU is lost]",
    "[GPU requires reset]",
    "Reset",
    "Yes",
]
NAMES = ["GPU-1", "GPU-\u00fc", "00000000:1B:00.0", "0000:1b:00", ":::", "", "\x1b[2J", "a\u2028b"]
CELL = st.sampled_from([*NUMBERS, *FAULTS, *NAMES])
COLUMNS = [columns.split(",") for columns in nvidia_smi.COLUMNS]
ADDRESS = st.sampled_from(["0000:1b:00", "1B:00.0", "00000000:1B:00.0", ":", "zz", "0000:1b:00.9"])
WORDS = st.sampled_from(
    ["31", "79", "154", "99999", "-1", "", "31, pid=1", "13, pid='<unknown>'", "\x1b[2J", "Fatal"]
)


@st.composite
def driver(draw: st.DrawFn) -> str:
    """What the section of the driver prints, with cells of any kind in rows of the right length."""
    columns = draw(st.sampled_from(COLUMNS))
    rows = draw(st.lists(st.lists(CELL, min_size=len(columns), max_size=len(columns)), max_size=4))
    apps = draw(st.lists(st.lists(CELL, min_size=3, max_size=3), max_size=3))
    heading = draw(st.sampled_from(["gpus", "alone"]))
    lines = ["driver", draw(CELL), "nodes", "Bus Location: \t 0000:1b:00.0", "Device Minor: x"]
    lines += [f"{heading} {','.join(columns)}", *map(", ".join, rows), f"status {draw(CELL)}"]
    return "\n".join([*lines, "processes", *map(", ".join, apps)])


@st.composite
def log(draw: st.DrawFn) -> str:
    """What the section of the kernel log prints."""
    said = draw(st.lists(st.tuples(CELL, ADDRESS, WORDS), max_size=6))
    lines = [f"{at} h kernel: NVRM: Xid (PCI:{address}): {words}" for at, address, words in said]
    lines += [f"{at} nvswitch0: SXid (PCI:{place}): {words}, Fatal, x" for at, place, words in said]
    lines += [f"1.5 NVRM: The NVIDIA GPU {place} has fallen off the bus" for _, place, _ in said]
    return "\n".join([draw(st.sampled_from(["now 100 5.5", "now x y"])), "journal", *lines])


@settings(max_examples=200, deadline=None)
@given(driver(), log(), st.sampled_from([0, 1, 14, 15, 137, 255]))
def test_a_verdict_is_made_of_anything(smi: str, kernel: str, code: int) -> None:
    facts = replace(
        SERVING,
        gpus=nvidia_smi.parse(Output(code, smi)),
        kernel_log=kernel_log.parse(Output(0, kernel)),
    )
    assert all(gpu.index >= 0 for gpu in facts.gpus.gpus)
    health = classify("gpuhost", PLACE.host, facts)
    assert health.verdict
    report = gpu_report("gpuhost", PLACE.host, facts)
    assert len(report.remarks) == len(health.remarks())
    host_status("gpuhost", PLACE.host, facts, now=0.0, locked=False)
    refusals(wish(), facts)
