"""The stand-in for nvidia-smi says what the real one says, in health and in each fault."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ddtreectl.facts import nvidia_smi
from ddtreectl.facts.output import Output
from tests.fleet.lab.base_layer import GUEST
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.gpu import Failure, Gpu, GpuFault, GpuState, Holder, Process, write
from tests.fleet.lab.host import Host
from tests.fleet.lab.waiting import until

HEALTHY = GpuState.healthy("h1", 2)
UUIDS = [gpu.uuid for gpu in HEALTHY.gpus]
CSV = "--format=csv,noheader,nounits"
NAMES = "--query-gpu=index,uuid,pci.bus_id,compute_cap,memory.total,memory.used"


class Driver:
    """A driver whose state is in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def be(self, state: GpuState) -> None:
        write(self.folder, state)

    def asked(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-IS", str(GUEST / "nvidia_smi.py"), *words],
            capture_output=True,
            env={**os.environ, "FAKE_GPU": str(self.folder)},
            timeout=30,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        return done.returncode, done.stdout.decode(errors="replace")


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    driver = Driver(tmp_path)
    driver.be(HEALTHY)
    return driver


def rows(text: str) -> list[list[str]]:
    return [line.split(", ") for line in text.splitlines()]


def test_healthy(driver: Driver) -> None:
    code, said = driver.asked(NAMES, CSV)
    assert code == 0
    assert rows(said) == [
        ["0", UUIDS[0], "00000000:0B:00.0", "12.0", "97887", "4"],
        ["1", UUIDS[1], "00000000:1B:00.0", "12.0", "97887", "4"],
    ]
    assert driver.asked("--query-compute-apps=pid", CSV) == (0, "")


def test_header_and_units(driver: Driver) -> None:
    _, said = driver.asked("--query-gpu=index,memory.total", "--format=csv", "-i", "1")
    assert said == "index, memory.total [MiB]\n1, 97887 MiB\n"


@pytest.mark.parametrize("name", ["1", UUIDS[1], "00000000:1B:00.0", "0000:1B:00.0"])
def test_one_gpu_by_any_of_its_names(driver: Driver, name: str) -> None:
    assert driver.asked("--query-gpu=uuid", CSV, f"--id={name}") == (0, f"{UUIDS[1]}\n")


def test_no_such_gpu(driver: Driver) -> None:
    assert driver.asked("--query-gpu=uuid", CSV, "-i", "7") == (6, "No devices were found\n")


def test_lists(driver: Driver) -> None:
    _, said = driver.asked("-L")
    assert said.splitlines()[1] == (
        f"GPU 1: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: {UUIDS[1]})"
    )
    assert '"memory.used"' in driver.asked("--help-query-gpu")[1].splitlines()
    assert '"pid"' in driver.asked("--help-query-compute-apps")[1].splitlines()


def test_report(driver: Driver) -> None:
    driver.be(HEALTHY.with_gpu(1, fields={"gpu_recovery_action": "Reset"}))
    code, said = driver.asked("-q", "-i", "1")
    fields = {key.strip(): value for key, _, value in (x.partition(": ") for x in said.split("\n"))}
    assert code == 0
    assert fields["Driver Version"] == "580.95.05"
    assert fields["Attached GPUs"] == "2"
    assert fields["GPU UUID"] == UUIDS[1]
    assert fields["GPU Recovery Action"] == "Reset"


def test_unknown_field(driver: Driver) -> None:
    driver.be(replace(HEALTHY, unknown_fields=("gpu_recovery_action",)))
    code, said = driver.asked("--query-gpu=index,gpu_recovery_action", CSV)
    assert (code, said.strip()) == (2, 'Field "gpu_recovery_action" is not a valid field to query.')


def test_process_counts_as_used_memory(driver: Driver) -> None:
    driver.be(replace(HEALTHY, processes=(Process(UUIDS[1], 47028, 20000, "python3"),)))
    asked = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"
    assert driver.asked(asked, CSV)[1] == f"{UUIDS[1]}, 47028, 20000, python3\n"
    assert driver.asked("--query-gpu=memory.used", CSV)[1] == "4\n20004\n"


@pytest.mark.parametrize(
    ("fault", "cell"),
    [
        ("n/a", "[N/A]"),
        ("unknown-error", "[Unknown Error]"),
        ("lost", "[GPU is lost]"),
        ("requires-reset", "[GPU requires reset]"),
        ("err", "ERR!"),
    ],
)
def test_cells_of_a_faulty_gpu(driver: Driver, fault: GpuFault, cell: str) -> None:
    driver.be(HEALTHY.with_gpu(0, fault=fault))
    code, said = driver.asked(NAMES, CSV)
    used = "0" if fault == "requires-reset" else cell
    assert code == 0
    assert rows(said)[0] == ["0", UUIDS[0], "00000000:0B:00.0", cell, cell, used]
    assert rows(said)[1][4:] == ["97887", "4"]


def test_missing_gpu_moves_the_others_up(driver: Driver) -> None:
    driver.be(HEALTHY.with_gpu(0, fault="missing"))
    assert driver.asked("--query-gpu=index,uuid", CSV) == (0, f"0, {UUIDS[1]}\n")
    listed = sorted(path.name for path in (driver.folder / "driver/nvidia/gpus").iterdir())
    assert listed == ["0000:1b:00.0"]


@pytest.mark.parametrize(
    ("fault", "code", "words", "others"),
    [
        ("handle", 255, "Unknown Error", 0),
        ("handle-lost", 15, "GPU is lost.  Reboot the system to recover this GPU", 0),
        ("handle-everywhere", 255, "Unknown Error", 255),
    ],
)
def test_gpu_without_handle_breaks_the_whole_query(
    driver: Driver, fault: GpuFault, code: int, words: str, others: int
) -> None:
    driver.be(HEALTHY.with_gpu(0, fault=fault))
    said = f"Unable to determine the device handle for GPU0000:0B:00.0: {words}\n"
    assert driver.asked(NAMES, CSV) == (code, said)
    assert driver.asked("--query-compute-apps=pid", CSV) == (code, said)
    assert driver.asked("--query-gpu=uuid", CSV, "-i", "1")[0] == others
    assert len(driver.asked("-L")[1].splitlines()) == 2


def test_corrupt_inforom_is_only_a_warning(driver: Driver) -> None:
    driver.be(HEALTHY.with_gpu(1, fault="inforom"))
    code, said = driver.asked("--query-gpu=uuid", CSV)
    assert code == 14
    assert said.splitlines() == [*UUIDS, "WARNING: infoROM is corrupted at gpu 0000:1B:00.0"]


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        ("no-driver", 9, "couldn't communicate with the NVIDIA driver"),
        ("no-devices", 6, "No devices were found"),
        ("no-library", 12, "couldn't find libnvidia-ml.so library"),
        ("mismatch", 18, "Driver/library version mismatch"),
        ("garbage", 0, "\ufffd"),
        ("crash", -11, ""),
    ],
)
def test_failures_of_the_driver(driver: Driver, failure: Failure, code: int, words: str) -> None:
    driver.be(replace(HEALTHY, failure=failure))
    assert (driver.folder / "module/nvidia/version").exists() == (failure != "no-driver")
    for form in ([NAMES, CSV], ["-L"], ["-q"], []):
        returned, said = driver.asked(*form)
        assert returned == code
        assert words in said


@pytest.mark.parametrize("fault", get_args(GpuFault))
def test_ddtreectl_reads_every_fault(driver: Driver, fault: GpuFault) -> None:
    driver.be(HEALTHY.with_gpu(0, fault=fault))
    said = "driver\n580.95.05\nnodes\n"
    for path in sorted((driver.folder / "driver/nvidia/gpus").glob("*/information")):
        said += path.read_text()
    code, rows = driver.asked(f"--query-gpu={nvidia_smi.COLUMNS[0]}", CSV)
    said += f"gpus {nvidia_smi.COLUMNS[0]}\n{rows}status {code}\n"
    if code not in nvidia_smi.DATA_IS_VALID:
        said += f"alone {nvidia_smi.COLUMNS[0]}\n"
        for card in HEALTHY.gpus:
            said += driver.asked(f"--query-gpu={nvidia_smi.COLUMNS[0]}", CSV, "-i", card.pci)[1]
    found = nvidia_smi.parse(Output(0, said))
    healthy = [gpu.uuid for gpu in found.gpus if gpu.memory_total_mib == 97887 and not gpu.fault]
    assert found.driver == "580.95.05"
    assert (UUIDS[1] in healthy) == (fault != "handle-everywhere")
    assert (UUIDS[0] in healthy) == (fault in {"", "inforom"})


def test_state_survives_its_file() -> None:
    state = replace(
        HEALTHY.with_gpu(1, fault="lost", fields={"serial": "1"}),
        processes=(Process(UUIDS[0], 1, 2, "x"),),
        holders=(Holder(UUIDS[0], "a*.service", 3),),
    )
    assert GpuState.from_json(state.to_json()) == state
    with pytest.raises(ValueError, match="no such fault: tired"):
        GpuState.from_json({**HEALTHY.to_json(), "failure": "tired"})
    with pytest.raises(ValueError, match="no such fault: shy"):
        GpuState.from_json({"gpus": [{"uuid": "GPU-1", "pci": "", "fault": "shy"}]})
    with pytest.raises(TypeError):
        GpuState.from_json({"gpus": [{"uuid": "GPU-1"}]})


# ---- on a host ----


@pytest.fixture
def h1(fleet: Fleet) -> Host:
    return fleet.hosts["h1"]


def test_hosts_have_gpus_of_their_own(fleet: Fleet) -> None:
    asked = f"nvidia-smi --query-gpu=uuid {CSV}; cat /sys/module/nvidia/version; ls /dev/nvidia?"
    said = [host.says(asked, user="deploy2").split() for host in fleet.hosts.values()]
    assert said[0] == [*UUIDS, "580.95.05", "/dev/nvidia0", "/dev/nvidia1"]
    assert not set(said[0][:2]) & set(said[1][:2])


def test_faults_come_and_go_while_a_host_runs(h1: Host) -> None:
    h1.set_gpus(replace(h1.healthy_gpus, failure="no-driver"))
    assert h1.ssh("nvidia-smi").returncode == 9
    assert h1.ssh("test -e /sys/module/nvidia -o -e /proc/driver/nvidia").returncode == 1
    h1.set_gpus(GpuState((Gpu("GPU-1", "00000000:01:00.0", "Tesla V100", "7.0", 32768),)))
    assert h1.says("nvidia-smi -L") == "GPU 0: Tesla V100 (UUID: GPU-1)"
    h1.heal()
    assert len(h1.says("nvidia-smi -L").splitlines()) == 2


def test_unit_holds_memory_while_it_runs(h1: Host) -> None:
    holder = Holder(UUIDS[1], "ddtree-gpu1-*.service", 20480)
    h1.set_gpus(replace(h1.healthy_gpus, holders=(holder,)))
    h1.says("systemd-run -q --unit ddtree-gpu1-tree.service sleep infinity")
    pid = h1.says("systemctl show -P MainPID ddtree-gpu1-tree.service")
    asked = f"nvidia-smi {CSV} --query-compute-apps=gpu_uuid,pid,used_memory"
    assert h1.says(asked, user="deploy2") == f"{UUIDS[1]}, {pid}, 20480"
    used = f"nvidia-smi {CSV} --query-gpu=memory.used"
    assert h1.says(used).split() == ["4", "20484"]
    h1.says("systemctl stop ddtree-gpu1-tree.service")
    assert h1.says(used).split() == ["4", "4"]


@pytest.mark.parametrize(("failure", "code"), [("hang", 124), ("hang-stubborn", 137)])
def test_hang_that_ends_by_signals(h1: Host, failure: Failure, code: int) -> None:
    h1.set_gpus(replace(h1.healthy_gpus, failure=failure))
    assert h1.ssh("timeout -k 0.5 0.2 nvidia-smi; exit $?").returncode == code


def test_hang_that_no_signal_ends(h1: Host) -> None:
    h1.set_gpus(replace(h1.healthy_gpus, failure="hang-uninterruptible"))
    h1.says("nvidia-smi >/dev/null 2>&1 & echo $! >/run/stuck")
    state = "ps -o stat= -p $(cat /run/stuck)"
    until(lambda: h1.says(state).startswith("D"), "nvidia-smi is in state D")
    h1.says("kill -KILL $(cat /run/stuck)")
    assert h1.says(state).startswith("D")
    h1.heal()
    until(lambda: h1.ssh(state).returncode == 1, "nvidia-smi has ended")


def test_host_with_a_stuck_process_can_lose_its_power(h1: Host) -> None:
    h1.set_gpus(replace(h1.healthy_gpus, failure="hang-uninterruptible"))
    h1.says("nvidia-smi >/dev/null 2>&1 & echo $! >/run/stuck")
    until(lambda: h1.says("ps -o stat= -p $(cat /run/stuck)").startswith("D"), "state D")
    h1.kill()
    assert not h1.up
