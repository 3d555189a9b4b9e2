"""Environments for hosts that have neither a network nor packages: wheels over SSH, uv, systemd."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ctl.env import wheels
from tests.fleet import wheelhouse
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.gpu import GpuState
from tests.fleet.lab.topology import HostSpec
from tests.fleet.operator import Operator

pytestmark = pytest.mark.slow

ROOT = Path("var/lib/ddtree")


class Provisioner(Operator):
    """An operator of a host with a GPU, of one without, and of one that is to take things over."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__(fleet, folder)
        self.folder = folder
        self.fleet = fleet
        service = "service: {start_timeout: 60, stop_timeout: 2}"
        self.set_option("ConnectTimeout", "2")
        self.set_option("ServerAliveInterval", "1")
        self.write(
            hosts=f"""hosts:
  cpu:
    address: {fleet.hosts["cpu"].address}
    user: deploy
    slots:
      cpu0: {{device: cpu, port: 30000, {service}}}
  ct129:
    address: {fleet.hosts["ct129"].address}
    slots:
      gpu1: {{gpus: [1], port: 30001, {service}}}
  ct200:
    address: {fleet.hosts["ct200"].address}
    slots:
      gpu1: {{gpus: [1], port: 30001, {service}}}
"""
        )

    def gpus(self, name: str, **changes: object) -> None:
        host = self.fleet.hosts[name]
        host.set_gpus(replace(GpuState.healthy(name, 2), **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provisioner]:
    hosts = [
        HostSpec("cpu", gpus=0),
        HostSpec("ct129", disk="16G"),
        HostSpec("ct200", disk="16G"),
    ]
    with Fleet.boot(hosts) as fleet:
        provisioner = Provisioner(fleet, tmp_path_factory.mktemp("operator"))
        yield provisioner
        provisioner.close()


@pytest.fixture
def stand_ins(operator: Provisioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheelhouse with two builds of a torch that is none, and what an engine needs beside it."""
    house = tmp_path / "wheelhouse"
    house.mkdir()
    python = f"cp{wheelhouse.python_version().replace('.', '')}"
    for build in ("cu128", "cu130"):
        wheels.torch(house, build, python=python)
    for major in (12, 13):
        wheels.cuda_runtime(house, major)
    wheels.module(house, "soundfile", "0.13.1")
    wheels.module(house, "xgrammar", "0.2.1")
    wheels.kernels(house, "cu128", python=python)
    monkeypatch.setitem(operator.env, "DDTREECTL_ENGINE_WHEEL", str(wheels.engine(tmp_path)))
    return house


def test_the_build_follows_driver_and_gpus(operator: Provisioner, stand_ins: Path) -> None:
    words = ["provision", "ct200", "--wheelhouse", str(stand_ins), "--dry-run", "--json"]

    def chosen() -> object:
        return json.loads(operator.run(*words).stdout)["plan"]["build"]

    assert chosen() == "cu130"
    operator.gpus("ct200", driver="575.57.08")
    assert chosen() == "cu128"
    operator.gpus("ct200", failure="no-driver")
    refused = operator.run(*words)
    assert refused.returncode == 1
    assert "no NVIDIA driver is loaded" in refused.stderr
    operator.gpus("ct200")
    asked = operator.run("provision", "ct200", "--wheelhouse", str(stand_ins), "--cuda", "cu126")
    assert "it has no machine code for compute capability 12.0" in asked.stderr


def test_packages_for_another_cuda_are_found_on_the_host(
    operator: Provisioner, stand_ins: Path
) -> None:
    """The story: kernels that were built for +cu128, and a torch for +cu130."""
    done = operator.run("provision", "ct200", "--wheelhouse", str(stand_ins), "--cuda", "cu130")
    assert done.returncode == 1
    assert "`fast_kernels` was built for CUDA 12, and torch 2.13.0+cu130" in done.stderr
    assert not list((operator.fleet.hosts["ct200"].root / ROOT).glob("environments/*/*.json"))


def test_a_host_that_loses_its_power_in_the_middle_of_a_build(
    operator: Provisioner, stand_ins: Path
) -> None:
    host = operator.fleet.hosts["ct200"]
    host.says("rm -rf /var/lib/ddtree/environments /var/lib/ddtree/provisioned.json")
    words = ["provision", "ct200", "--wheelhouse", str(stand_ins), "--cuda", "cu128"]
    begun = operator.begin(*words)
    assert begun.stderr is not None
    for line in begun.stderr:
        if "✓ make" in line:
            break
    host.kill()
    _, said = begun.communicate(timeout=120)
    assert begun.returncode == 4, said
    host.start()
    assert not list((host.root / ROOT).glob("environments/*/environment.json"))
    again = operator.run(*words)
    assert again.returncode == 0, again.stderr
    assert "bring" in again.stderr
    assert len(list((host.root / ROOT).glob("environments/*/environment.json"))) == 1


def test_a_doctor_looks_at_everything_and_changes_nothing(
    operator: Provisioner, stand_ins: Path
) -> None:
    built = operator.run("provision", "ct200", "--wheelhouse", str(stand_ins), "--cuda", "cu128")
    assert built.returncode == 0, built.stderr
    host = operator.fleet.hosts["ct200"]
    host.says("rm -rf /var/lib/ddtree/environments/engine-cu130-*")  # what other tests left
    list_all = "cd /var/lib/ddtree && find . -printf '%p %s %T@\\n' | sort"
    before = host.says(list_all)

    def checks(code: int) -> dict[str, list[dict[str, str]]]:
        done = operator.run("doctor", "ct200", "--json")
        assert done.returncode == code, done.stdout
        found: dict[str, list[dict[str, str]]] = {}
        for check in json.loads(done.stdout)["checks"]:
            found.setdefault(check["area"], []).append(check)
        return found

    well = checks(0)
    assert {check["state"] for area in well.values() for check in area} == {"ok"}
    assert "torch 2.13.0+cu128" in well["environment"][0]["what"]
    assert host.says(list_all) == before

    operator.gpus("ct200", driver="520.61.05")
    old = [check["what"] for check in checks(1)["environment"]]
    assert any("cu128 does not fit the host: it needs driver 525.60.13" in what for what in old)
    operator.gpus("ct200", failure="no-driver")
    ill = checks(1)
    assert ill["driver"][0]["state"] == "failed"
    assert "no NVIDIA driver is loaded" in ill["cuda"][0]["what"]
    operator.gpus("ct200")
    (kernels,) = host.says("ls /var/lib/ddtree/environments/*/lib/*/*/fast_kernels/ops.so").split()
    host.says(f"cp {kernels} /root/kept && rm {kernels} && echo broken >{kernels}")
    broken = checks(1)["environment"][0]
    assert "`fast_kernels` cannot be imported" in broken["what"]
    assert broken["hint"]
    host.says(f"mv /root/kept {kernels}")


def test_a_doctor_without_sudo(operator: Provisioner) -> None:
    text = operator.inventory.read_text()
    operator.inventory.write_text(text.replace("user: deploy\n", "user: deploy2\n"))
    done = operator.run("doctor", "cpu")
    operator.inventory.write_text(text)
    assert done.returncode == 1
    assert "✗ access" in done.stdout
    assert "deploy2 ALL=(root) NOPASSWD: ALL" in done.stdout


def test_a_disk_that_is_too_small_is_told_before_anything_is_sent(
    operator: Provisioner, stand_ins: Path
) -> None:
    host = operator.fleet.hosts["ct200"]
    host.says("rm -rf /var/lib/ddtree/environments /var/lib/ddtree/provisioned.json")
    for fill, says in ((host.fill, "MiB are needed"), (host.fill_inodes, "inodes free, and")):
        fill(100)
        done = operator.run("provision", "ct200", "--wheelhouse", str(stand_ins), "--dry-run")
        host.heal()
        assert done.returncode == 1
        assert says in done.stdout
    assert host.says("ls -d /var/lib/ddtree/environments 2>/dev/null || true") == ""


def test_an_environment_is_taken_over_from_another_host(
    operator: Provisioner, stand_ins: Path
) -> None:
    """The story: ct129 has an environment that works, and ct200 has none."""
    # What is in an environment is not trusted with the host that it is taken from.
    curious = "try:\n    open('/root/seen', 'w')\nexcept OSError:\n    pass\n"
    wheels.module(stand_ins, "soundfile", "0.13.1", curious)
    words = ["provision", "ct129", "--wheelhouse", str(stand_ins), "--cuda", "cu128"]
    built = operator.run(*words)
    assert built.returncode == 0, built.stderr
    there = operator.fleet.hosts["ct200"]
    there.says("rm -rf /var/lib/ddtree/environments /var/lib/ddtree/provisioned.json")
    take = ["provision", "ct200", "--from", "ct129"]

    operator.gpus("ct200", driver="520.61.05")
    refused = operator.run(*take)
    assert refused.returncode == 1
    assert "cu128: it needs driver 525.60.13, the host has 520.61.05" in refused.stderr
    operator.gpus("ct200")
    other = operator.run(*take, "--cuda", "cu130", "--torch", "2.11.0", "--dry-run")
    assert other.returncode == 1
    assert "torch: it has 2.13.0+cu128, and 2.11.0 is wanted on `ct200`" in other.stdout
    assert "CUDA: it is built for cu128, and cu130 is wanted on `ct200`" in other.stdout
    assert there.says("ls -d /var/lib/ddtree/environments 2>/dev/null || true") == ""

    begun = operator.begin(*take)
    assert begun.stderr is not None
    for line in begun.stderr:
        if "✓ copy" in line:
            break
    begun.kill()
    begun.communicate()
    assert there.says("ls /var/lib/ddtree/environments/*/environment.json 2>&1 || true").endswith(
        "No such file or directory"
    )
    taken = operator.run(*take)
    assert taken.returncode == 0, taken.stderr
    assert "✓ copy 0 of" in taken.stderr
    again = operator.run(*take)
    assert "is there already" in again.stdout
    for name in ("ct129", "ct200"):
        assert not (operator.fleet.hosts[name].root / "root/seen").exists()

    planned = operator.run("deploy", "ct200", "--mode", "tree", "--dry-run", "--json")
    environment = json.loads(planned.stdout)["plan"]["environment"]
    assert (there.root / ROOT / "environments" / environment / "environment.json").exists()
    assert there.says(f"/var/lib/ddtree/environments/{environment}/bin/ddtree-engine") == "served"
