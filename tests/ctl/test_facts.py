"""Parsers of facts. A case is a file: what the command said, and what it means."""

import json
import math
import os
import platform
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
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
    record_files,
    systemd,
)
from ddtreectl.facts.driver import Driver
from ddtreectl.facts.http import Request
from ddtreectl.facts.output import TIMED_OUT, Output, as_float
from ddtreectl.facts.probe import Call, Section
from ddtreectl.facts.records import Records
from ddtreectl.inventory.layout import Layout
from ddtreectl.units.supervisor import Replacement, Systemd

CASES = sorted((Path(__file__).parent / "facts").glob("*/*.yaml"))
LAYOUT = Layout("/r", "/r/environments", "/etc/systemd/system")


def parse_records(output: Output) -> dict[str, object]:
    """The records with those fields of generations and lock that cases are about."""
    found: Records = record_files.parse(output, LAYOUT)
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


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def scope_of(root: Path) -> host.Scope:
    layout = Layout(str(root / "r"), str(root / "r/environments"), str(root / "units"))
    return host.Scope(layout, ("gpu0",), (), (), sys.executable, Systemd.SHOW, None)


def gpu_sections(deadline: float = 15.0) -> dict[str, Section]:
    return {"gpus": replace(host.sections(scope_of(Path("/nowhere")))["gpus"], deadline=deadline)}


def run(
    sections: dict[str, Section], python: str = sys.executable, path: Path | None = None
) -> dict[str, Output]:
    argv = ["sh", "-s"] if python == NO_PYTHON else probe.argv(sections, python)
    done = subprocess.run(
        argv,
        input=probe.script(sections) if python == NO_PYTHON else "",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
        check=True,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else None,
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


def test_functions_share_a_process_and_one_that_hangs_ends_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        ask = replace(http.call([Request(url, 60.0)]), lane="lane")
        tell = Call("records", "tell_records", (["/proc/self/stat"], []), "lane")
        other = Call("records", "tell_records", (["/proc/self/stat"], []), "other")
        wrong = Call("records", "tell_records", (), "lane")
        found = run(
            {
                "before": Section("echo shell", call=tell),
                "raises": Section("", call=wrong),
                "again": Section("", call=tell),
                "apart": Section("", call=other),
                "hung": Section("", 0.3, ask),
                "behind": Section("echo shell", call=tell),
                "shell": Section("echo here"),
            }
        )
    before, again, apart = (found[name].stdout.split()[2] for name in ("before", "again", "apart"))
    assert before == again != apart  # process ids
    assert found["raises"].returncode == 1
    assert "TypeError" in found["raises"].stderr
    assert found["hung"] == Output(TIMED_OUT, "")
    assert "behind" not in found  # it was not asked: that is no answer
    assert found["shell"].stdout == "here\n"


def test_what_a_function_said_before_it_hangs_is_kept(tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", "echo '0, GPU-x, NAME'; sleep 60")
    found = run(gpu_sections(deadline=1.0), path=tmp_path)["gpus"]
    assert found.timed_out
    assert "gpus index" in found.stdout


def test_what_a_function_says_on_stderr_is_its_error(tmp_path: Path) -> None:
    program(tmp_path / "journalctl", "echo 'no\tjournal' >&2; exit 1")
    program(tmp_path / "dmesg", "echo NVRM: x")
    program(tmp_path / "nvidia-smi", "exit 9")
    scope = scope_of(tmp_path)
    found = run({"log": host.sections(scope)["kernel_log"]}, path=tmp_path)["log"]
    assert (found.returncode, found.stderr) == (0, "no\tjournal\n")
    assert found.stdout.endswith("dmesg\nNVRM: x\n")


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
    argv = probe.argv(sections, sys.executable, pause=0.0)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        documents = ("".join(iter(process.stdout.readline, "\n")) for _ in range(3))
        first, second, third = map(probe.parse, documents)
        process.kill()
    often = [found["often"].stdout for found in (first, second, third)]
    assert often == sorted(set(often))
    assert first["rarely"] == second["rarely"] == third["rarely"]
    assert third["hung"].timed_out


def test_a_section_that_was_cut_off_is_missing_unless_its_silence_is_a_fact() -> None:
    cut_off = dict.fromkeys(("units", "gpus", "answers"), Output(TIMED_OUT, ""))
    scope = host.Scope(LAYOUT, (), (), (), "python3", ("true",), None)
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
        show_systemd=Systemd.SHOW,
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


GPU = "0, GPU-x, NAME, 12.0, 97887, {used}, 00000000:0B:00.0, 0, No, No, None"
SMI = """
case "$1" in
--query-gpu=*) case "$1" in {unknown}) exit 2;; esac; echo "{gpu}"; exit {code};;
--query-compute-apps=*) echo "GPU-x, 7, 100"; echo asked >>{asked};;
*) echo "0, GPU-x, NAME, 12.0, 97887, 3";;
esac
"""
SMIS = {
    "idle": (GPU.format(used=4), 0, "none", False),
    "in use": (GPU.format(used=400), 0, "none", True),
    "unknown use": (GPU.format(used="[N/A]"), 0, "none", True),
    "an older driver": (GPU.format(used=400).rpartition(",")[0], 0, "*recovery*", True),
    "a damaged infoROM": (GPU.format(used=4), 14, "none", True),
    "a driver that fails": ("it failed", 9, "none", False),
}


@pytest.mark.parametrize("case", SMIS)
def test_an_interpreter_and_a_shell_ask_nvidia_smi_alike(tmp_path: Path, case: str) -> None:
    gpu, code, unknown, asks = SMIS[case]
    asked = tmp_path / "asked"
    script = SMI.format(gpu=gpu, code=code, unknown=unknown, asked=asked)
    program(tmp_path / "nvidia-smi", script)
    (found,) = run(gpu_sections(), path=tmp_path).values()
    assert asked.exists() == asks
    (by_shell,) = run(gpu_sections(), NO_PYTHON, tmp_path).values()
    there, same = nvidia_smi.parse(found), nvidia_smi.parse(by_shell)
    assert replace(there, processes=()) == replace(same, processes=())
    if asks:  # one that is idle has nobody, and is not asked
        assert there.processes == same.processes


def test_an_interpreter_and_a_shell_find_the_same_records_and_units(tmp_path: Path) -> None:
    scope = scope_of(tmp_path)
    layout = scope.layout
    for path, text in {
        layout.lock: '{"owner": "é",\n "token": "t"}',
        f"{layout.slot('gpu0')}/generations/000001/generation.json": "{}",
        f"{layout.slot('gpu0')}/generations/000001/state.json": '{"status": "good"}',
        f"{layout.slot('gpu0')}/stopped.json": "",
        f"{layout.cordons}/host.json": '{"reason": "a\tb"}',
        f"{layout.environments}/engine-cpu-0123456789ab/environment.json": '{"a": 1}',
        f"{layout.environments}/engine-cpu-0123456789ac/x": "",
        layout.unit("ddtree-gpu0-tree.service"): "[Unit]\nDescription=x",
    }.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    Path(layout.unit("ddtree-gpu0-linear.service")).symlink_to("/dev/null")  # masked
    every = host.sections(scope)
    asked = {name: every[name] for name in ("systemd", "records", "unit_files")}
    facts, by_shell = (
        host.parse(run(asked, python), scope, asked) for python in (sys.executable, NO_PYTHON)
    )
    assert facts.records.lock is not None
    assert by_shell.records.lock is not None
    lock = replace(facts.records.lock, age=by_shell.records.lock.age)  # they look one by one
    assert replace(facts, records=replace(facts.records, lock=lock)) == by_shell
    assert [entry.status for entry in facts.records.generations] == ["failed"]
    assert set(facts.unit_files) == {"ddtree-gpu0-tree.service"}
    assert len(facts.records.cordons) == len(facts.records.environments) == 1


def test_the_interpreter_and_its_abi_are_those_that_it_has() -> None:
    asked = python.command(sys.executable)
    said = subprocess.run(["sh", "-c", asked], capture_output=True, text=True, check=True).stdout
    found = python.parse(Output(0, said))
    assert found is not None
    assert found.version == sys.version_info[:3]
    tag, libc = sys.implementation.cache_tag, " ".join(platform.libc_ver())
    assert found.abi == f"{tag} {sysconfig.get_platform()} {libc}"
    assert found.has_venv


def test_the_listeners_are_found_without_ss() -> None:
    without_ss = ports.command().replace("command -v ss", "false")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        said = subprocess.run(["sh", "-c", without_ss], capture_output=True, text=True, check=True)
        by_python = run(
            {"ports": Section("", call=Call("ports", "tell_ports_of_proc", needs=("commands",)))}
        )["ports"]
        for output in (Output(0, said.stdout), by_python):
            found = {entry.port: entry.pids for entry in ports.parse(output)}
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
