"""Units: text, check by systemd-analyze, the commands that run them, the revert script."""

import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ddtreectl import bundle
from ddtreectl.apply import deadman
from ddtreectl.errors import DdtreectlError
from ddtreectl.facts.gpu import unknown
from ddtreectl.inventory.layout import Layout, slot_units, unit_name
from ddtreectl.inventory.loader import load
from ddtreectl.inventory.select import Place, find_place, service_for
from ddtreectl.inventory.service import Mode, ServiceSpec
from ddtreectl.plan.step import Candidate
from ddtreectl.units import gpu_nodes, lint
from ddtreectl.units.render import RenderedUnit, render
from ddtreectl.units.supervisor import Replacement, Systemd

GOLDEN = Path(__file__).parent / "golden"
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def place(inventory: str, host: str) -> tuple[Place, ServiceSpec]:
    loaded = load(bundle.inventories() / inventory)
    found = find_place(loaded, host)
    return found, service_for(loaded, found, Mode.TREE, budget=16)


def unit(inventory: str, host: str) -> RenderedUnit:
    found, service = place(inventory, host)
    return render(
        layout=found.layout,
        slot=found.slot_name,
        service=service,
        generation=7,
        environment="engine-0123456789ab",
        gpus=[replace(unknown(i), uuid=f"GPU-{i}", minor=i) for i in found.slot.gpus],
    )


@pytest.mark.parametrize(("inventory", "host"), [("local.yaml", "local"), ("fleet.yaml", "ct200")])
def test_the_unit_is_the_golden_one(inventory: str, host: str) -> None:
    rendered = unit(inventory, host)
    text = f"{rendered.text}\n# ---- environment ----\n{rendered.environment_file}"
    assert text == (GOLDEN / f"{host}.service").read_text()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.service")), ids=lambda path: path.stem)
def test_nothing_of_an_environment_runs_as_root(path: Path) -> None:
    """What was taken over from another host is what that one said."""
    as_root = re.findall(r"(?m)^Exec\w+=.?\+.*$", path.read_text())
    assert not [line for line in as_root if "/environments/" in line]


def test_the_unit_of_device_nodes_is_the_golden_one() -> None:
    assert gpu_nodes.render() == (GOLDEN / gpu_nodes.NAME).read_text()


def test_a_unit_with_a_gpu_wants_its_nodes_before_it_starts() -> None:
    text = unit("fleet.yaml", "ct200").text
    assert f"\nAfter=network-online.target {gpu_nodes.NAME}\n" in text
    assert f"\nWants={gpu_nodes.NAME}\n" in text
    assert gpu_nodes.NAME not in unit("local.yaml", "local").text


@needs_analyze
def test_systemd_accepts_the_unit_of_device_nodes(tmp_path: Path) -> None:
    path = tmp_path / gpu_nodes.NAME
    path.write_text(gpu_nodes.render())
    done = subprocess.run(lint.command(str(path)), capture_output=True, text=True, check=False)
    assert lint.complaints(done.returncode, done.stdout + done.stderr) == ""


def test_the_modes_of_a_slot_exclude_each_other() -> None:
    rendered = unit("fleet.yaml", "ct200")
    assert rendered.name == unit_name("gpu1", Mode.TREE)
    others = [name for name in slot_units("gpu1") if name != rendered.name]
    assert f"Conflicts={' '.join(others)}\n" in rendered.text
    assert len(others) == 2


def test_paths_of_a_unit_are_those_of_its_generation() -> None:
    text = unit("local.yaml", "local").text
    assert "/current" not in text
    assert text.count("/generations/000007") == 3


def test_a_value_that_no_unit_can_hold_is_an_error() -> None:
    found, service = place("local.yaml", "local")
    with pytest.raises(DdtreectlError) as caught:
        render(
            layout=Layout("/r\n", "/e", "/u"),
            slot=found.slot_name,
            service=service,
            generation=1,
            environment="e",
        )
    assert "control character" in caught.value.cause


@needs_analyze
@pytest.mark.parametrize(("inventory", "host"), [("local.yaml", "local"), ("fleet.yaml", "ct200")])
def test_the_exposure_of_a_unit(tmp_path: Path, inventory: str, host: str) -> None:
    rendered = unit(inventory, host)
    (tmp_path / rendered.name).write_text(rendered.text)
    bound = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20"]
    done = subprocess.run(
        [*bound, str(tmp_path / rendered.name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_unit_opens_its_own_gpu_and_no_other() -> None:
    rendered = unit("fleet.yaml", "ct200")
    allowed = [line for line in rendered.text.splitlines() if line.startswith("DeviceAllow=")]
    assert [line.split("/dev/")[1] for line in allowed] == [
        "nvidia1 rw",
        "nvidiactl rw",
        "nvidia-uvm rw",
    ]
    assert 'CUDA_VISIBLE_DEVICES="GPU-1"' in rendered.environment_file
    assert "PrivateDevices=yes" in unit("local.yaml", "local").text


def test_an_api_key_is_a_credential_and_no_argument() -> None:
    found, service = place("fleet.yaml", "ct200")
    rendered = render(
        layout=found.layout,
        slot=found.slot_name,
        service=service.model_copy(update={"api_key": "/etc/ddtree/key.txt"}),
        generation=1,
        environment="e",
    )
    assert "LoadCredential=key.txt:/etc/ddtree/key.txt\n" in rendered.text
    assert rendered.argv[-2:] == ("--api-key-file", "/etc/ddtree/key.txt")
    assert "key" not in rendered.environment_file


def complaints(folder: Path, text: str) -> str:
    path = folder / "ddtree-cpu0-tree.service"
    path.write_text(text)
    done = subprocess.run(lint.command(str(path)), capture_output=True, text=True, check=False)
    return lint.complaints(done.returncode, done.stdout + done.stderr)


def runnable(folder: Path) -> str:
    """A unit whose program is there."""
    found, service = place("local.yaml", "local")
    program = folder / "environments/e/bin/ddtree-engine"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    layout = Layout(str(folder), str(folder / "environments"), str(folder))
    return render(
        layout=layout, slot=found.slot_name, service=service, generation=1, environment="e"
    ).text


@needs_analyze
def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    assert complaints(tmp_path, runnable(tmp_path)) == ""


@needs_analyze
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("Restart=always", "Restrt=always", "Unknown key"),
        ("LimitNOFILE=65536", "MemoryMax=abc", "Invalid memory limit"),
        ("TimeoutStartSec=180", "TimeoutStartSec=10x", "Failed to parse"),
        ("UMask=0077", "Environment=A=b c", "Invalid environment assignment"),
        ("bin/ddtree-engine", "bin/not-there", "is not executable"),
        ("Description=", "Description=%z ", "Failed to resolve unit specifiers"),
        ("ExecStart=", 'ExecStart="', "Unbalanced quoting"),
    ],
)
def test_every_word_of_systemd_is_a_failure(
    tmp_path: Path, right: str, wrong: str, said: str
) -> None:
    text = runnable(tmp_path)
    assert right in text
    assert said in complaints(tmp_path, text.replace(right, wrong, 1))


def test_no_systemd_analyze_is_no_failure() -> None:
    assert lint.complaints(127, "") == ""
    assert lint.complaints(1, "") == "systemd-analyze exit status 1"


def test_commands_of_systemd() -> None:
    systemd = Systemd()
    assert systemd.start("u.service", 60) == ["systemctl", "start", "--no-block", "u.service"]
    assert systemd.stop("u.service") == ["systemctl", "stop", "u.service"]
    assert systemd.reload() == ["systemctl", "daemon-reload"]
    assert systemd.journal("u.service", 5, follow=True)[-3:] == ["-n", "5", "-f"]
    assert "_SYSTEMD_INVOCATION_ID=abc" in systemd.journal_since("u", "@1", "abc", 40)
    assert "--since" in systemd.journal_since("u", "@1", None, 40)


def test_the_replacement_hands_no_environment_down() -> None:
    replacement = Replacement("/opt/python", "/tmp/a/b")
    command = replacement.stop("u.service")
    assert command[:2] == ["env", "-i"]
    assert command[-3:] == ["--root=/tmp/a/b", "stop", "u.service"]


def test_two_roots_share_no_socket() -> None:
    """Docker-systemctl-replacement puts a notify socket whose path is too long into $TMPDIR."""
    folders = []
    for root in ("/a" * 60, "/b" * 60):
        command = Replacement("/opt/python", root).start("u.service", 5)[-1]
        folders.append(re.findall(r"TMPDIR=(/run/\S+)", command))
    assert [len(found) for found in folders] == [1, 1]
    assert folders[0] != folders[1]


def test_the_revert_script_brings_the_last_good_unit_back(tmp_path: Path) -> None:
    found, service = place("fleet.yaml", "ct200")
    back = Candidate(3, service, "e", "ddtree-gpu1-linear.service", "", "", staged=True)
    script = deadman.script(found, 4, back, "token-7")
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=True)
    assert checked.stderr == ""
    order = [
        "rm -f /var/lib/ddtree/lock.json",
        "DDTREECTL_LOCK=token-7",
        "systemctl stop",
        "000004/state.json",
        "000003/ddtree-gpu1-linear.service",
        "daemon-reload",
        "start ddtree",
    ]
    positions = [script.index(text) for text in order]
    assert positions == sorted(positions)
    assert "start" not in deadman.script(found, None, None, "token-7")


def test_the_revert_script_holds_the_lock_however_long_a_model_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that was not renewed for a minute would be taken over in the middle of it."""
    monkeypatch.setattr(deadman, "RENEW_EVERY", 0.05)
    found, _ = place("fleet.yaml", "ct200")
    changed = {"root": str(tmp_path / "root"), "unit_dir": str(tmp_path / "units")}
    found = replace(found, host=found.host.model_copy(update=changed))
    lock, go_on = Path(found.layout.lock), tmp_path / "go on"
    lock.parent.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(
        f'#!/bin/sh\nwhile [ ! -e "{go_on}" ]; do sleep 0.02; done\n'
    )
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    script = deadman.script(found, None, None, "token-7")
    with subprocess.Popen(["sh", "-c", script]) as process:
        try:
            end = time.monotonic() + 30
            while not (lock.exists() and "the host itself" in lock.read_text()):
                assert time.monotonic() < end, "it took no lock"
            os.utime(lock, (0, 0))
            while lock.stat().st_mtime == 0:
                assert time.monotonic() < end, "it does not renew its lock"
        finally:
            go_on.touch()
    assert process.returncode == 0
    assert not lock.exists()
    assert not list(lock.parent.glob("lock*"))
