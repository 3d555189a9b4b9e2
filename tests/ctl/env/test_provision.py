"""`ddtreectl provision` on this machine, from wheels as small as they can be."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtreectl.env.backends import BACKENDS
from ddtreectl.env.wheel import VARIABLE
from tests.ctl.conftest import new_machine
from tests.ctl.env import wheels
from tests.ctl.machine import REPOSITORY, Machine

pytestmark = pytest.mark.slow

STEPS = ("look at the host", "have uv", "bring", "make", "install", "verify", "mark it finished")


class Provisioner:
    """An operator with a wheelhouse, and a machine of its own."""

    def __init__(self, machine: Machine, wheelhouse: Path) -> None:
        self.machine = machine
        self.wheelhouse = wheelhouse
        self.words = ["provision", "local", "--wheelhouse", str(wheelhouse)]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.machine.run(*self.words, *words)

    def plan(self) -> dict[str, object]:
        done = self.run("--dry-run", "--json")
        plan = json.loads(done.stdout)["plan"]
        assert isinstance(plan, dict)
        return plan

    def replace(self, *made: Path) -> None:
        """Have these wheels in the place of those of the same packages."""
        for path in made:
            name = path.name.partition("-")[0]
            for old in self.wheelhouse.glob(f"{name}-*.whl"):
                old.unlink()
            path.rename(self.wheelhouse / path.name)

    @property
    def environments(self) -> Path:
        return self.machine.root / "environments"

    def finished(self) -> list[str]:
        return [path.parent.name for path in self.environments.glob("*/environment.json")]


@pytest.fixture
def provisioner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Provisioner":
    house = tmp_path / "wheelhouse"
    house.mkdir()
    wheels.torch(house, "cpu")
    wheels.kernels(house, "cpu")
    wheels.module(house, "soundfile", "0.13.1")
    wheels.module(house, "xgrammar", "0.2.1")
    monkeypatch.setenv(VARIABLE, str(wheels.engine(tmp_path)))
    return Provisioner(new_machine(tmp_path), house)


def test_it_is_built_once_and_served_from(provisioner: Provisioner) -> None:
    plan = provisioner.plan()
    assert (plan["build"], plan["torch"]) == ("cpu", "2.13.0")
    assert not provisioner.environments.exists()

    built = provisioner.run()
    assert built.returncode == 0, built.stderr
    assert provisioner.finished() == [plan["environment"]]
    folder = provisioner.environments / str(plan["environment"])
    told = json.loads((folder / "environment.json").read_text())
    assert told["fingerprint"]["torch"] == "2.13.0+cpu"
    assert told["fingerprint"]["packages"]["xgrammar"] == "0.2.1"
    said = subprocess.run(
        [folder / "bin/ddtree-engine"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "served\n"

    files = {path: path.lstat().st_mtime_ns for path in provisioner.environments.rglob("*")}
    again = provisioner.run()
    assert again.returncode == 0
    assert "is there already" in again.stdout
    assert provisioner.plan()["steps"] == []
    assert {p: p.lstat().st_mtime_ns for p in provisioner.environments.rglob("*")} == files

    without = provisioner.machine.run("provision", "local")
    assert "is there already" in without.stdout

    deploy = provisioner.machine.deploy("tree", "--dry-run", "--json")
    steps = json.loads(deploy.stdout)["plan"]["steps"]
    assert json.loads(deploy.stdout)["plan"]["environment"] == plan["environment"]
    assert "build-environment" not in [step["action"] for step in steps]


def test_a_terminal_sees_a_bar(provisioner: Provisioner) -> None:
    """While uv is brought, which is the one big file here; a screen is read as it is written."""
    controller, screen = pty.openpty()
    process = subprocess.Popen(
        provisioner.machine.command(*provisioner.words),
        stdout=subprocess.DEVNULL,
        stderr=screen,
        cwd=REPOSITORY,
        env={**os.environ, "PATH": "/usr/bin:/bin", "TERM": "xterm", "COLUMNS": "120"},
    )
    provisioner.machine.processes.append(process)
    os.close(screen)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal that nobody has open any more
        while piece := os.read(controller, 65536):
            shown += piece
    os.close(controller)
    assert process.wait(60) == 0
    said = shown.decode()
    assert "━" in said
    assert " MiB" in said
    assert "✓ have uv" in said


@pytest.mark.parametrize("step", STEPS)
def test_a_build_that_is_killed_leaves_nothing_that_looks_finished(
    step: str, provisioner: Provisioner
) -> None:
    """After each step in turn, the operator is killed while the next one goes on."""
    process = provisioner.machine.begin(*provisioner.words)
    assert process.stderr is not None
    for line in process.stderr:
        if f"✓ {step}" in line:
            break
    else:
        pytest.fail(f"it ended before it said {step!r}")
    process.kill()
    process.communicate()
    if step not in STEPS[-2:]:  # what follows on the checks takes less time than to kill it
        assert provisioner.finished() == []
    again = provisioner.run()
    assert again.returncode == 0, again.stderr
    assert len(provisioner.finished()) == 1
    assert provisioner.plan()["steps"] == []


def test_an_operator_who_changes_their_mind(provisioner: Provisioner) -> None:
    process = provisioner.machine.begin(*provisioner.words)
    assert process.stderr is not None
    for line in process.stderr:
        if "✓ have uv" in line:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 1
    assert "interrupted" in said
    assert provisioner.finished() == []
    assert not (provisioner.machine.root / "lock.json").exists()


def test_the_next_engine_goes_into_what_was_provisioned(
    provisioner: Provisioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deploy builds from the wheels that are on the host. The engine here then wants no model."""
    assert provisioner.run().returncode == 0
    shutil.rmtree(provisioner.wheelhouse)
    (tmp_path / "next").mkdir()
    engine = wheels.engine(tmp_path / "next", "raise SystemExit('no model of that kind')")
    monkeypatch.setenv(VARIABLE, str(engine))
    deploy = provisioner.machine.deploy("tree")
    assert deploy.returncode == 1
    assert "✓ build environment" in deploy.stderr
    assert "no model of that kind" in deploy.stderr
    assert len(provisioner.finished()) == 2


def wrong_xgrammar(folder: Path) -> Path:
    return wheels.module(folder, "xgrammar", "0.1.10")


def other_cuda(folder: Path) -> Path:
    return wheels.kernels(folder, "cu128")


def old_string(folder: Path) -> Path:
    return wheels.kernels(folder, "cpu", symbol=wheels.OLD_STRING)


def other_python(folder: Path) -> Path:
    return wheels.kernels(folder, "cpu", python="cp310")


def other_torch(folder: Path) -> Path:
    return wheels.torch(folder, "cpu", "2.11.0")


def cuda_torch(folder: Path) -> Path:
    return wheels.torch(folder, "cu128")


def newer_glibc(folder: Path) -> Path:
    return wheels.kernels(folder, "cpu", glibc="2.99")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (wrong_xgrammar, "xgrammar==0.2.1"),
        (other_cuda, "`fast_kernels` was built for CUDA 12, and torch 2.13.0+cpu for the CPU"),
        (old_string, "`fast_kernels` was built for the old C++ ABI"),
        (other_python, "fast-kernels"),
        (newer_glibc, "`fast_kernels` needs glibc 2.99"),
        (other_torch, "the wheelhouse has no torch 2.13.0 for cp311"),
        (cuda_torch, "the wheelhouse has no torch 2.13.0 for `cpu`"),
    ],
)
def test_what_does_not_fit_is_refused(
    make: Callable[[Path], Path], says: str, provisioner: Provisioner, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    provisioner.replace(make(tmp_path / "other"))
    done = provisioner.run()
    assert done.returncode == 1, done.stdout
    assert says in done.stderr
    assert "hint:" in done.stderr
    assert provisioner.finished() == []


def test_a_package_that_the_wheelhouse_lacks(provisioner: Provisioner) -> None:
    next(provisioner.wheelhouse.glob("soundfile-*.whl")).unlink()
    done = provisioner.run()
    assert done.returncode == 1
    assert "soundfile" in done.stderr
    assert "add what is missing to the wheelhouse" in done.stderr
    assert provisioner.finished() == []


def test_an_exact_list_is_installed_as_it_is(provisioner: Provisioner) -> None:
    """Without soundfile, which the engine requires: only its import tells that it is missing."""
    listed = provisioner.wheelhouse / "requirements.txt"
    listed.write_text("torch==2.13.0\nfast-kernels==0.4.5\nxgrammar==0.2.1\n")
    done = provisioner.run()
    assert done.returncode == 1
    assert "`soundfile` is not installed, and ddtree-engine requires it" in done.stderr
    listed.write_text("torch==2.13.0\nfast-kernels==0.4.5\nxgrammar==0.2.1\nsoundfile==0.13.1\n")
    assert provisioner.run().returncode == 0


def test_what_was_sent_before_is_not_sent_again(provisioner: Provisioner, tmp_path: Path) -> None:
    assert provisioner.run().returncode == 0
    (tmp_path / "more").mkdir()
    store = provisioner.environments / ".wheels"
    for name, age in (("a.part", 3600), ("b.part", 3 * 86400)):
        (store / name).touch()
        os.utime(store / name, (time.time() - age,) * 2)
    provisioner.replace(wheels.module(tmp_path / "more", "soundfile", "0.14.0"))
    assert "bring 1 of 4 wheels, 0 MiB" in str(provisioner.plan()["steps"])
    assert provisioner.run().returncode == 0
    assert len(provisioner.finished()) == 2
    held = {path.name for path in provisioner.environments.glob(".wheelhouses/*/*")}
    assert held == {path.name for path in provisioner.wheelhouse.iterdir()}
    stored = {path.name for path in store.iterdir()}
    assert len(stored - {"a.part"}) == len(held) + 1  # and uv
    assert "a.part" in stored  # it may go on, for a day


def unpacked(provisioner: Provisioner) -> list[str]:
    """The packages in uv's cache."""
    found = provisioner.environments.glob(".cache/archive-v*/*/*.dist-info")
    return [path.name.removesuffix(".dist-info") for path in found]


def test_two_roots_with_one_folder_of_environments(
    provisioner: Provisioner, tmp_path: Path
) -> None:
    first = provisioner.machine
    (tmp_path / "other").mkdir()
    other = new_machine(tmp_path / "other")
    other.environments = provisioner.environments
    other.write_inventory()
    assert provisioner.run().returncode == 0
    (old,) = provisioner.finished()
    shared = other.run(*provisioner.words)
    assert shared.returncode == 0, shared.stderr
    assert "make" not in shared.stderr

    (tmp_path / "more").mkdir()
    provisioner.replace(wheels.module(tmp_path / "more", "soundfile", "0.14.0"))
    assert provisioner.run().returncode == 0
    pruned = first.run("prune", "--json")
    assert json.loads(pruned.stdout)["environments"] == []
    assert old in provisioner.finished()
    names = {path.name for path in provisioner.environments.glob(".wheelhouses/*/*")}
    assert {name for name in names if name.startswith("soundfile")} == {
        "soundfile-0.13.1-py3-none-any.whl",
        "soundfile-0.14.0-py3-none-any.whl",
    }
    assert {"soundfile-0.13.1", "soundfile-0.14.0"} <= set(unpacked(provisioner))

    assert other.run(*provisioner.words).returncode == 0
    pruned = other.run("prune", "--json")
    assert json.loads(pruned.stdout)["environments"] == [old]
    assert len(provisioner.finished()) == 1
    assert first.run("prune").returncode == 0
    assert len(provisioner.finished()) == 1


def test_unpacked_wheels_go_with_the_last_environment_that_holds_them(
    provisioner: Provisioner, tmp_path: Path
) -> None:
    assert provisioner.run().returncode == 0
    (tmp_path / "more").mkdir()
    provisioner.replace(wheels.module(tmp_path / "more", "soundfile", "0.14.0"))
    assert provisioner.run().returncode == 0
    assert {"soundfile-0.13.1", "soundfile-0.14.0"} <= set(unpacked(provisioner))
    pruned = provisioner.machine.run("prune")
    assert pruned.returncode == 0, pruned.stderr
    assert "✓ remove unpacked wheels that no environment holds" in pruned.stderr
    left = unpacked(provisioner)
    assert "soundfile-0.13.1" not in left
    assert sorted(left) == sorted(set(left))  # each package once
    (environment,) = provisioner.finished()
    module = next((provisioner.environments / environment).rglob("soundfile.py"))
    assert module.stat().st_nlink == 2

    shutil.rmtree(provisioner.environments / environment)
    again = provisioner.run()  # from a cache that has less in it than before
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (["--wheelhouse", "/nowhere"], 2, "the wheelhouse `/nowhere` is no folder"),
        (["--torch", "2.13"], 1, "the wheelhouse has no torch 2.13 "),
        (["--torch", "newest"], 2, "is no exact version"),
        (["--cuda", "cu128"], 1, "no service of the host uses one"),
    ],
)
def test_wishes_that_cannot_be(
    change: list[str], code: int, says: str, provisioner: Provisioner
) -> None:
    done = provisioner.run(*change)
    assert done.returncode == code
    assert says in done.stderr
    assert not provisioner.environments.exists()


def test_a_wheel_that_is_damaged(provisioner: Provisioner) -> None:
    next(provisioner.wheelhouse.glob("soundfile-*.whl")).write_bytes(b"PK\3\4 and no more")
    done = provisioner.run()
    assert done.returncode == 1
    assert "is damaged" in done.stderr


def test_a_host_with_gpus_and_without_a_driver(provisioner: Provisioner) -> None:
    inventory = provisioner.machine.inventory
    inventory.write_text(inventory.read_text().replace("device: cpu", "gpus: [0]"))
    done = provisioner.run()
    assert done.returncode == 1
    assert "no NVIDIA driver is loaded" in done.stderr
    assert provisioner.finished() == []


def sglang_wheels(folder: Path) -> None:
    """What a server of SGLang imports, each as a package of one module."""
    requires = ["torch==2.11.0", "xgrammar==0.2.1", "soundfile==0.13.1", "datasets"]
    files = {"sglang/__init__.py": "", "sglang/launch_server.py": "import soundfile, xgrammar\n"}
    wheels.wheel(folder, "sglang", "0.5.16", files, requires=requires)
    wheels.torch(folder, "cpu", "2.11.0")
    for module, name in BACKENDS["sglang"].imports.items():
        if name != "sglang":
            text = {f"{module}.py": ""}
            wheels.wheel(folder, name, VERSIONS.get(name, "1.0"), text)


VERSIONS = {"xgrammar": "0.2.1", "soundfile": "0.13.1"}


def test_sglang_gets_the_list_of_its_wheelhouse(provisioner: Provisioner) -> None:
    """The story: soundfile missing, and an xgrammar that is too old, found before any service."""
    house = provisioner.wheelhouse
    for old in house.glob("*.whl"):
        old.unlink()
    sglang_wheels(house)
    names = [*BACKENDS["sglang"].imports.values(), "torch"]
    provisioner.words += ["--backend", "sglang"]

    (house / "requirements.txt").write_text("\n".join(n for n in names if n != "soundfile"))
    lacking = provisioner.run()
    assert lacking.returncode == 1
    assert "`sglang.launch_server` cannot be imported" in lacking.stderr
    assert "the package that has `soundfile` is not in the environment" in lacking.stderr

    (house / "requirements.txt").write_text("\n".join(names))
    (new,) = house.glob("xgrammar-*.whl")
    new.unlink()
    wheels.module(house, "xgrammar", "0.1.10")
    old = provisioner.run()
    assert "`xgrammar` is 0.1.10, and sglang 0.5.16 asks for ==0.2.1" in old.stderr
    assert provisioner.finished() == []

    wheels.module(house, "xgrammar", "0.2.1")
    (house / "xgrammar-0.1.10-py3-none-any.whl").unlink()
    done = provisioner.run()
    assert done.returncode == 0, done.stderr
    (name,) = provisioner.finished()
    assert name.startswith("sglang-cpu-")
