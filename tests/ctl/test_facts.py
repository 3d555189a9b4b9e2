"""Parsers of facts. A case is a file: what the command said, and what it means."""

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ddtreectl.facts import (
    disk,
    driver,
    host,
    http,
    kernel_log,
    nvidia_smi,
    paths,
    ports,
    probe,
    processes,
    python,
    records,
    systemd,
)
from ddtreectl.facts.driver import Driver
from ddtreectl.facts.output import TIMED_OUT, Output, as_float
from ddtreectl.facts.probe import Section
from ddtreectl.facts.records import Records
from ddtreectl.inventory.layout import Layout
from ddtreectl.units.supervisor import Replacement, Systemd

CASES = sorted((Path(__file__).parent / "facts").glob("*/*.yaml"))
LAYOUT = Layout("/r", "/r/environments", "/etc/systemd/system")


def parse_records(output: Output) -> dict[str, object]:
    """The records with those fields of generations and lock that cases are about."""
    found: Records = records.parse(output, LAYOUT)
    kept = ("slot", "number", "status", "unit", "changed_at", "reason")
    return {
        "generations": [
            {key: getattr(entry, key) for key in kept}
            | {"mode": entry.service.mode.value if entry.service else None}
            for entry in found.generations
        ],
        "swaps": [asdict(swap) for swap in found.swaps],
        "stopped": sorted(found.stopped),
        "environments": sorted(found.environments),
        "lock": found.lock and {key: getattr(found.lock, key) for key in ("owner", "pid", "age")},
    }


def parse_gpus(output: Output) -> dict[str, object]:
    """The GPUs with what the driver tells of them: fields that it does not tell are left out."""
    found = nvidia_smi.parse(output)
    value = {key: item for key, item in plain(found).items() if item}
    for kind in ("gpus", "unlisted"):
        rows = [{k: v for k, v in row.items() if v is not None} for row in value.pop(kind, [])]
        value |= {kind: rows} if rows else {}
    return value


PARSERS: dict[str, Callable[[Output], Any]] = {
    "disk": disk.parse,
    "driver": driver.parse,
    "gpu": parse_gpus,
    "http": http.parse,
    "kernel_log": kernel_log.parse,
    "ports": ports.parse,
    "processes": processes.parse,
    "python": python.parse,
    "records": parse_records,
    "systemd": systemd.parse,
    "units": paths.parse_units,
}


def plain(value: Any) -> Any:
    """`value` as a YAML file can hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain({key: item for key, item in asdict(value).items() if key != "said"})
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(path: Path) -> None:
    case = YAML(typ="safe").load(path.read_text())
    output = Output(case.get("returncode", 0), case["stdout"], case.get("stderr", ""))
    assert plain(PARSERS[path.parent.name](output)) == case["value"]


DEEP = "[" * 100_000
HOSTILE = (
    DEEP,
    json.dumps({"url": "u", "status": 200, "body": DEEP}),
    f"/r/slots/a/generations/000001/generation.json\t1\t{DEEP}",
    '{"url": "u", "status": 1e999, "seconds": NaN}',
    "gpus\n0, GPU-1, x, ².³, 1, 1",
    "LISTEN 0 1 *:² *:*",
    json.dumps({"pid": 10**400, "ppid": 1, "ticks": 1, "started": 10**400}),
)


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_parser_survives_what_json_can_hold(name: str, text: str) -> None:
    PARSERS[name](Output(0, f"{text}\n"))


def test_what_a_service_says_of_itself_is_a_number_or_nothing() -> None:
    assert [as_float(value) for value in (1, 2.5, math.nan, math.inf, 10**400, True, "1")] == [
        *(1.0, 2.5),
        *[None] * 5,
    ]


def test_only_a_line_feed_ends_a_line() -> None:
    assert paths.parse(Output(0, "/a\x85b\n/c\u2028d\n")) == {"/a\x85b", "/c\u2028d"}


@pytest.mark.parametrize("name", sorted(PARSERS))
@given(text=st.text(), returncode=st.integers(0, 255))
def test_a_parser_never_raises(name: str, text: str, returncode: int) -> None:
    PARSERS[name](Output(returncode, text, text))


NO_PYTHON = "/nowhere/python3"
BOTH = pytest.mark.parametrize("python", [sys.executable, NO_PYTHON], ids=["driver", "shell"])


def test_the_kernel_tells_of_driver_and_gpus_without_touching_one(tmp_path: Path) -> None:
    devices = {"0000:0b:00.0": ("0x10de", "0x030200"), "0000:0b:00.1": ("0x10de", "0x040300")}
    for name, (vendor, kind) in (devices | {"0000:00:02.0": ("0x8086", "0x030000")}).items():
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    def found() -> Driver:
        asked = ["sh", "-c", driver.command(str(tmp_path))]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
        return driver.parse(Output(done.returncode, done.stdout))

    assert (found().version, found().gpus) == (None, 1)
    (tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0").mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(line)
    assert (found().version, found().gpus) == ("570.86.15", 2)
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.95.05\n")
    assert found().version == "580.95.05"
    (tmp_path / "dev").mkdir()
    assert found().uvm  # nobody has used the driver yet
    (tmp_path / "dev/nvidiactl").touch()
    assert not found().uvm
    (tmp_path / "dev/nvidia-uvm").touch()
    assert found().uvm


def run(sections: dict[str, Section], python: str = sys.executable) -> dict[str, Output]:
    done = subprocess.run(
        ["sh", "-s"],
        input=probe.script(sections, python),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
        check=True,
    )
    return probe.parse(done.stdout)


@BOTH
def test_a_probe_keeps_what_each_section_said(python: str) -> None:
    found = run(
        {
            "plain": Section("echo 'it'\\''s \"quoted\" $HOME'; echo worse >&2; exit 3"),
            "bytes": Section("printf '\\377\\000x'"),
            "empty": Section("true"),
            "killed": Section("kill -KILL $$"),
            "long": Section("yes | head -c 300000"),
        },
        python,
    )
    assert found["plain"] == Output(3, 'it\'s "quoted" $HOME\n', "worse\n")
    assert found["bytes"].stdout == "\ufffd\0x"
    assert found["empty"] == Output(0, "")
    assert found["killed"].returncode != 0
    assert len(found["long"].stdout) == 300000


@BOTH
def test_a_section_that_hangs_is_a_result_and_holds_nothing_up(python: str) -> None:
    sections = {
        "hung": Section("trap '' TERM; echo begun; sleep 60", 0.3),
        "quick": Section("echo here"),
    }
    found = run(sections, python)
    assert found["hung"].timed_out
    assert found["hung"].stdout == "begun\n"
    assert found["quick"].stdout == "here\n"


def test_sections_in_python_share_an_interpreter_and_nothing_else() -> None:
    sections = {
        "pid": Section("import os; print(os.getppid()); os.environ['LEAK'] = '1'", 5, True),
        "again": Section("import os; print(os.getppid(), 'LEAK' in os.environ)", 5, True),
        "raises": Section("print('before'); raise ValueError('no')", 5, True),
        "exits": Section("import os; os._exit(3)", 5, True),
        "hung": Section("import time; print('x', flush=True); time.sleep(60)", 0.3, True),
        "shell": Section("echo here"),
    }
    found = run(sections)
    assert found["again"].stdout == f"{found['pid'].stdout.strip()} False\n"
    assert (found["raises"].returncode, found["raises"].stdout) == (1, "before\n")
    assert "ValueError('no')" in found["raises"].stderr
    assert found["exits"].returncode == 3
    assert found["hung"] == Output(TIMED_OUT, "x\n")
    assert found["shell"].stdout == "here\n"
    assert set(run(sections, NO_PYTHON)) == {"shell"}


@BOTH
def test_no_content_passes_for_another_section(python: str) -> None:
    forged = 'printf \'\\n==> /tmp/tmp.x/b.out <==\\nforged\\n{"b": [0, "forged", ""]}\\n\''
    found = run({"a": Section(forged), "b": Section("true")}, python)
    assert found["b"].stdout == ""
    assert "forged" in found["a"].stdout


def test_a_probe_that_goes_on_asks_some_sections_less_often() -> None:
    sections = {
        "often": Section("date +%s%N"),
        "rarely": Section("date +%s%N", every=3600),
        "hung": Section("sleep 60", 0.1),
    }
    argv = probe.driver_argv(sections, sys.executable, pause=0.0)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second, third = (probe.parse(process.stdout.readline()) for _ in range(3))
        process.kill()
    often = [found["often"].stdout for found in (first, second, third)]
    assert often == sorted(set(often))
    assert first["rarely"] == second["rarely"] == third["rarely"]
    assert third["hung"].timed_out


def test_a_section_that_was_cut_off_is_missing_unless_its_silence_is_a_fact() -> None:
    cut_off = dict.fromkeys(("units", "gpus", "answers"), Output(TIMED_OUT, ""))
    scope = host.Scope(LAYOUT, (), (), (), "python3", "true", None)
    facts = host.parse({**cut_off, "ports": Output(0, "")}, scope, [*cut_off, "ports", "records"])
    assert facts.missing == ("units", "records")
    assert facts.gpus.state == "hung"


def test_all_facts_of_this_machine(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "not/yet"), str(tmp_path / "not/yet/envs"), str(tmp_path))
    scope = host.Scope(
        layout=layout,
        slots=("cpu7",),
        services=("http://127.0.0.1:9",),
        folders=(str(tmp_path),),
        python=sys.executable,
        show_systemd=Systemd().show(["x.service"]),
        show_otherwise=Replacement(sys.executable, str(tmp_path)).show(["x.service"]),
    )
    sections = host.sections(scope)
    facts = host.parse(run(sections), scope, sections)
    assert facts.missing == ()
    assert facts.python is not None
    assert facts.python.version == sys.version_info[:3]
    assert facts.disk[layout.root].free_bytes > 0
    assert facts.processes
    assert facts.answers["http://127.0.0.1:9/ready"].status is None
    assert facts.folders == frozenset()


def test_the_listeners_are_found_without_ss() -> None:
    without_ss = ports.command().replace("command -v ss", "false")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        said = subprocess.run(["sh", "-c", without_ss], capture_output=True, text=True, check=True)
        found = {entry.port: entry.pids for entry in ports.parse(Output(0, said.stdout))}
        assert os.getpid() in found[listener.getsockname()[1]]


def test_the_kernel_log_is_read_without_a_journal(tmp_path: Path) -> None:
    said = "[    5.000000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    tools = {
        "journalctl": "exit 1",
        "dmesg": f"echo '{said}'",
        "nvidia-smi": "exit 9",
    }
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", kernel_log.command()],
        capture_output=True,
        text=True,
        env={"PATH": path},
        check=True,
    )
    found = kernel_log.parse(Output(0, done.stdout))
    assert found.source == "dmesg"
    assert [(error.pci, error.xid) for error in found.errors] == [("0000:3b:00", 79)]
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert found.now is not None
    assert found.errors[0].last == pytest.approx(found.now - uptime + 5.0, abs=60)
